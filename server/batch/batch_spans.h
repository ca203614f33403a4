// The spans of a request that a batch answered.
//
//   serve            from its arrival to its reply, below the requester's span of the frame
//     queue          from its arrival until its batch is computed
//     kernel         while its batch is computed, for all requests in it
//     reply          until its answer is posted

#pragma once

#include "proto/base/clock.h"
#include "proto/base/span.h"
#include "server/batch/batch_compute.h"
#include "server/batch/ready_request.h"

namespace ckv {

// Records the spans of `ready`, whose trace is sampled. Its batch was `computed`, and its reply is
// about to be posted, at `now`. A request that has `failed` was not computed.
void RecordServed(const ReadyRequest& ready, const BatchComputed& computed, bool failed,
                  Instant now, SpanSink& sink);

}  // namespace ckv
