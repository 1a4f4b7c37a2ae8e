// SPDX-License-Identifier: Apache-2.0

// A Collector of OpenTelemetry that takes OTLP and prints it: what tests/foreign sends profiles to.
package main

import (
	"log"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/debugexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

func main() {
	set := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "collector", Version: "0"},
		Factories: func() (otelcol.Factories, error) {
			var f otelcol.Factories
			f.Telemetry = otelconftelemetry.NewFactory()
			f.Receivers = map[component.Type]receiver.Factory{}
			r := otlpreceiver.NewFactory()
			f.Receivers[r.Type()] = r
			f.Exporters = map[component.Type]exporter.Factory{}
			e := debugexporter.NewFactory()
			f.Exporters[e.Type()] = e
			return f, nil
		},
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{DefaultScheme: "file",
			ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()}}},
	}
	if err := otelcol.NewCommand(set).Execute(); err != nil {
		log.Fatal(err)
	}
}
