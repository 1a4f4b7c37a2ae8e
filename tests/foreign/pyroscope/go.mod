// SPDX-License-Identifier: Apache-2.0

module rubyunwind/pyroscope

go 1.26.8

require github.com/grafana/pyroscope/api v1.6.0
