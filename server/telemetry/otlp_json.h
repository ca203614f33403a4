// Spans as lines of OTLP/JSON, as OpenTelemetry's file exporter writes them.

#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "proto/base/span.h"

namespace ckv {

// The process that the spans are of.
struct SpanResource {
  std::string name;   // as the directory knows it
  std::string roles;  // "holder+requester"
  std::string version;
};

// Appends one ExportTraceServiceRequest in JSON, with its newline. `unix_offset_ns` is what the
// nanoseconds since 1970 are ahead of the clock of the spans. Ids are hexadecimal and times are
// strings, as OTLP/JSON wants them.
void AppendOtlpLine(const SpanResource& resource, std::span<const Span> spans,
                    int64_t unix_offset_ns, std::string& out);

}  // namespace ckv
