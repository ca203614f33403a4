#include "server/telemetry/otlp_json.h"

#include "absl/strings/str_format.h"
#include "server/telemetry/escape.h"

namespace ckv {
namespace {

// STATUS_CODE_ERROR of OpenTelemetry.
constexpr int kErrorStatus = 2;

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  AppendJsonText(text, quoted);
  return quoted + "\"";
}

void AppendText(std::string_view key, std::string_view text, std::string& out) {
  out += absl::StrFormat("{\"key\":%s,\"value\":{\"stringValue\":%s}}", Quoted(key), Quoted(text));
}

void AppendAttribute(const SpanAttribute& attribute, std::string& out) {
  if (attribute.is_text) {
    return AppendText(attribute.key,
                      CutText({attribute.text, attribute.text_bytes}, SpanAttribute::kTextBytesMax),
                      out);
  }
  out += absl::StrFormat("{\"key\":%s,\"value\":{\"intValue\":\"%d\"}}", Quoted(attribute.key),
                         attribute.number);
}

void AppendSpan(const Span& span, int64_t unix_offset_ns, std::string& out) {
  out += absl::StrFormat("{\"traceId\":\"%s\",\"spanId\":\"%s\",", ToHex(span.trace_id),
                         ToHex(span.span_id));
  if (span.parent_id != SpanId{})
    out += absl::StrFormat("\"parentSpanId\":\"%s\",", ToHex(span.parent_id));
  out += absl::StrFormat(
      "\"name\":%s,\"kind\":%d,\"startTimeUnixNano\":\"%d\",\"endTimeUnixNano\":\"%d\","
      "\"attributes\":[",
      Quoted(span.name), static_cast<int>(span.kind), span.start.ns + unix_offset_ns,
      span.end.ns + unix_offset_ns);
  for (size_t i = 0; i < span.attribute_count; ++i) {
    if (i > 0) out += ',';
    AppendAttribute(span.attributes[i], out);
  }
  out += ']';
  if (span.failed) out += absl::StrFormat(",\"status\":{\"code\":%d}", kErrorStatus);
  out += '}';
}

}  // namespace

void AppendOtlpLine(const SpanResource& resource, std::span<const Span> spans,
                    int64_t unix_offset_ns, std::string& out) {
  out += "{\"resourceSpans\":[{\"resource\":{\"attributes\":[";
  AppendText("service.name", "ckvd", out);
  out += ',';
  AppendText("service.instance.id", resource.name, out);
  out += ',';
  AppendText("service.version", resource.version, out);
  out += ',';
  AppendText("ckv.roles", resource.roles, out);
  out += "]},\"scopeSpans\":[{\"scope\":{\"name\":\"ckv\"},\"spans\":[";
  for (size_t i = 0; i < spans.size(); ++i) {
    if (i > 0) out += ',';
    AppendSpan(spans[i], unix_offset_ns, out);
  }
  out += "]}]}]}\n";
}

}  // namespace ckv
