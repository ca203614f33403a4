// The metrics of a process, for Prometheus.
//
// Every value is read when it is requested. Values are counters that the parts keep anyway, and
// contents of tables under short locks for which no query waits. No other process is queried.
// Labels have a limited number of values: fabrics, primitives, status codes, reasons, queues,
// roles, and the holders to which a requester was ever referred. No label names a chunk, a corpus
// or a tenant.

#pragma once

#include <string>

#include "server/web/web_sources.h"

namespace ckv {

// Returns the metrics in Prometheus' text format 0.0.4. Callable from any thread.
std::string MetricsText(const WebSources& sources);

}  // namespace ckv
