// SPDX-License-Identifier: Apache-2.0

// What Pyroscope makes of the name in a request to its /ingest: reads names, one a line and query-escaped, and
// prints their labels, or what is wrong with them, as JSON. tests/foreign asks it.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"net/url"
	"os"

	"github.com/grafana/pyroscope/api/model/labelset"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		name, err := url.QueryUnescape(lines.Text())
		if err != nil {
			log.Fatal(err)
		}
		var answer any
		if set, err := labelset.Parse(name); err != nil {
			answer = err.Error()
		} else if err := labelset.ValidateLabelSet(set); err != nil {
			answer = err.Error()
		} else {
			answer = set.Labels()
		}
		text, err := json.Marshal(answer)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(text))
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
}
