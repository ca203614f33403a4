#include "server/batch/batch_spans.h"

#include <algorithm>

namespace ckv {

void RecordServed(const ReadyRequest& ready, const BatchComputed& computed, bool failed,
                  Instant now, SpanSink& sink) {
  Span serve = BeginSpan(TraceOf(ready.header), "serve", SpanKind::kServer, ready.arrived);
  serve.end = now;
  serve.failed = failed;
  serve.Set("layer", ready.header.layer);
  serve.Set("rows", ready.header.row_count);
  serve.Set("requester", ready.session->requester);
  sink.Record(serve);
  if (failed) return;
  const TraceContext below = {serve.trace_id, serve.span_id, true};
  const auto add = [&](const char* name, Instant begin, Instant end) {
    Span span = BeginSpan(below, name, SpanKind::kInternal, begin);
    span.end = end;
    sink.Record(span);
  };
  const Instant started = std::clamp(computed.started, ready.arrived, now);
  const Instant computed_by = std::clamp(computed.started + computed.elapsed, started, now);
  add("queue", ready.arrived, started);
  add("kernel", started, computed_by);
  add("reply", computed_by, now);
}

}  // namespace ckv
