// A span of a trace, with its beginning and end, and the interface that records spans.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "proto/base/clock.h"
#include "proto/base/trace_context.h"

namespace ckv {

// The values are those of OpenTelemetry.
enum class SpanKind : uint8_t { kInternal = 1, kServer = 2, kClient = 3 };

// An attribute of a span: a number or a text.
struct SpanAttribute {
  static constexpr size_t kTextBytesMax = 40;
  const char* key = nullptr;  // a literal
  int64_t number = 0;
  bool is_text = false;
  uint8_t text_bytes = 0;
  char text[kTextBytesMax] = {};
};

// Owns no memory, so a copy is a few hundred bytes and allocates nothing.
struct Span {
  static constexpr size_t kAttributeCountMax = 6;

  TraceId trace_id{};
  SpanId span_id{};
  SpanId parent_id{};          // all zero at the root of a trace
  const char* name = nullptr;  // lives as long as the process
  SpanKind kind = SpanKind::kInternal;
  bool failed = false;
  uint8_t attribute_count = 0;
  Instant start, end;  // by the Clock of the sink
  std::array<SpanAttribute, kAttributeCountMax> attributes{};

  // Adds an attribute, or drops it beyond kAttributeCountMax. Cuts a text to kTextBytesMax bytes.
  void Set(const char* key, int64_t number) {
    if (attribute_count == kAttributeCountMax) return;
    SpanAttribute& attribute = attributes[attribute_count++];
    attribute.key = key;
    attribute.number = number;
    attribute.is_text = false;
  }
  void Set(const char* key, std::string_view text) {
    if (attribute_count == kAttributeCountMax) return;
    SpanAttribute& attribute = attributes[attribute_count++];
    attribute.key = key;
    attribute.is_text = true;
    attribute.text_bytes =
        static_cast<uint8_t>(std::min(text.size(), SpanAttribute::kTextBytesMax));
    std::memcpy(attribute.text, text.data(), attribute.text_bytes);
  }
};

// Begins a child span of the span in `trace`.
inline Span BeginSpan(const TraceContext& trace, const char* name, SpanKind kind, Instant start) {
  Span span;
  span.trace_id = trace.trace_id;
  span.span_id = NewSpanId();
  span.parent_id = trace.span_id;
  span.name = name;
  span.kind = kind;
  span.start = start;
  return span;
}

// Records spans that have ended. Thread-safe. Check first whether the trace is sampled: if it is
// not, do nothing and read no clock.
class SpanSink {
 public:
  struct Counts {
    uint64_t recorded = 0;
    uint64_t dropped = 0;  // part of `recorded`: there was no space, or the file write failed
  };

  virtual ~SpanSink() = default;
  // Takes a copy. Called on the data path, so it does not wait for a disk or a peer.
  virtual void Record(const Span& span) noexcept = 0;
  virtual Counts counts() const = 0;
};

}  // namespace ckv
