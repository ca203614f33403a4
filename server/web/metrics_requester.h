// The metrics of a requester.

#pragma once

#include "server/web/metrics_page.h"
#include "server/web/web_sources.h"

namespace ckv {

// `sources` must have a requester.
void AddRequester(const WebSources& sources, MetricsPage& page);

}  // namespace ckv
