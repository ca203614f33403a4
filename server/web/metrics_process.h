// The process metrics that client libraries of Prometheus have, by their usual names.

#pragma once

#include "server/web/metrics_page.h"

namespace ckv {

// Adds processor time, memory, threads, file descriptors and the start of this process, from /proc.
// It leaves out values that it cannot read.
void AddProcess(MetricsPage& page);

}  // namespace ckv
