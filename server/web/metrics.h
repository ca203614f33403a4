// The metrics of a process, for Prometheus.
//
// Every value is read when it is asked for. Values are counters that the parts keep anyway, and
// contents of tables behind short locks that no query waits for. No other process is asked. Labels
// have a limited number of values: fabrics, primitives, status codes, reasons, queues, roles, and
// the holders that a requester was ever sent to. Nothing names a chunk, a corpus or a tenant.

#pragma once

#include <string>

#include "server/web/web_sources.h"

namespace ckv {

// Returns the metrics in Prometheus' text format 0.0.4. By any thread.
std::string MetricsText(const WebSources& sources);

}  // namespace ckv
