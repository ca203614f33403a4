#include "proto/base/trace_context.h"

#include <atomic>
#include <cstring>

#include "absl/strings/str_format.h"
#include "proto/host/platform.h"

namespace ckv {
namespace {

// The places of the parts of "vv-tttttttttttttttttttttttttttttttt-ssssssssssssssss-ff".
constexpr size_t kTraceIdAt = 3, kSpanIdAt = 36, kFlagsAt = 53, kLength = 55;
constexpr uint8_t kSampledFlag = 1;

// Lower case only, as the specification says; -1 for everything else.
int DigitOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool ParseBytes(std::string_view text, uint8_t* out, size_t byte_count) {
  for (size_t i = 0; i < byte_count; ++i) {
    const int high = DigitOf(text[2 * i]), low = DigitOf(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return true;
}

template <typename Id>
std::string HexOf(const Id& id) {
  std::string text;
  for (const uint8_t byte : id) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

// Random words that differ in all processes: splitmix64 over a random start.
uint64_t NextWord() {
  static const uint64_t start = RandomWord();
  static std::atomic<uint64_t> count{0};
  uint64_t z = start + count.fetch_add(1, std::memory_order_relaxed) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

template <typename Id>
Id NewId() {
  Id id;
  do {
    for (size_t at = 0; at < id.size(); at += sizeof(uint64_t)) {
      const uint64_t word = NextWord();
      std::memcpy(id.data() + at, &word, sizeof(word));
    }
  } while (id == Id{});
  return id;
}

thread_local const TraceContext* current_trace = nullptr;

}  // namespace

std::optional<TraceContext> ParseTraceparent(std::string_view text) {
  uint8_t version = 0, flags = 0;
  TraceContext trace;
  if (text.size() < kLength || !ParseBytes(text, &version, 1) || version == 0xff)
    return std::nullopt;
  if (version == 0 ? text.size() != kLength : text.size() > kLength && text[kLength] != '-')
    return std::nullopt;
  for (const size_t dash : {kTraceIdAt, kSpanIdAt, kFlagsAt}) {
    if (text[dash - 1] != '-') return std::nullopt;
  }
  const bool hex =
      ParseBytes(text.substr(kTraceIdAt), trace.trace_id.data(), trace.trace_id.size()) &&
      ParseBytes(text.substr(kSpanIdAt), trace.span_id.data(), trace.span_id.size()) &&
      ParseBytes(text.substr(kFlagsAt), &flags, 1);
  if (!hex || !trace.set() || trace.span_id == SpanId{}) return std::nullopt;
  trace.sampled = (flags & kSampledFlag) != 0;
  return trace;
}

std::string FormatTraceparent(const TraceContext& trace) {
  const SpanId span = trace.span_id == SpanId{} ? NewSpanId() : trace.span_id;
  return absl::StrFormat("00-%s-%s-%02x", ToHex(trace.trace_id), ToHex(span),
                         trace.sampled ? kSampledFlag : 0);
}

TraceContext NewTrace(bool sampled) {
  return {.trace_id = NewId<TraceId>(), .span_id = {}, .sampled = sampled};
}

SpanId NewSpanId() { return NewId<SpanId>(); }

std::string ToHex(const TraceId& id) { return HexOf(id); }
std::string ToHex(const SpanId& id) { return HexOf(id); }

std::string TraceSuffix(const TraceContext& trace) {
  return absl::StrFormat(" [trace %s]", ToHex(trace.trace_id));
}

absl::Status WithTrace(const absl::Status& status, const TraceContext& trace) {
  if (status.ok() || !trace.set()) return status;
  const std::string suffix = TraceSuffix(trace);
  std::string message(status.message());
  if (message.find(suffix) != std::string::npos) return status;
  absl::Status named(status.code(), message + suffix);
  status.ForEachPayload([&named](absl::string_view url, const absl::Cord& payload) {
    named.SetPayload(url, payload);
  });
  return named;
}

const TraceContext* CurrentTrace() { return current_trace; }

void SetCurrentTrace(const TraceContext* trace) { current_trace = trace; }

}  // namespace ckv
