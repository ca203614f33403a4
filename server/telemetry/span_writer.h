// Writes spans to a file as lines of OTLP/JSON.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/base/span.h"
#include "server/telemetry/otlp_json.h"
#include "server/telemetry/span_file.h"

namespace ckv {

struct SpanWriterOptions {
  std::string path;
  uint64_t file_bytes_max = uint64_t{64} << 20;  // as SpanFile::Open
  SpanResource resource;
  Clock* clock = Clock::Real();  // borrowed; the clock of the spans
  // The wall clock's time since 1970 minus the time of `clock`, in nanoseconds. If 0, it is
  // measured.
  int64_t unix_offset_ns = 0;
};

// Thread-safe. Record copies the span into memory that was allocated at the start, under a short
// lock. A thread writes the recorded spans every kFlushPeriod, or once the memory is half full.
// Spans that do not fit are dropped and counted.
class SpanWriter final : public SpanSink {
 public:
  static constexpr size_t kSpanCountMax = 8192;  // 4 MB; enough for 16,000 spans per second
  static constexpr Duration kFlushPeriod = std::chrono::milliseconds(500);
  static constexpr size_t kSpansPerLineMax = 256;

  // Opens the file and appends to its contents.
  //   InvalidArgument     the errors of SpanFile::Open.
  static absl::StatusOr<std::unique_ptr<SpanWriter>> Start(SpanWriterOptions options);
  // Writes the recorded spans.
  ~SpanWriter() override;
  SpanWriter(const SpanWriter&) = delete;
  SpanWriter& operator=(const SpanWriter&) = delete;

  void Record(const Span& span) noexcept override ABSL_LOCKS_EXCLUDED(mu_);
  Counts counts() const override ABSL_LOCKS_EXCLUDED(mu_);

  // Returns once all spans recorded before are in the file or dropped.
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  SpanWriter(SpanWriterOptions options, std::unique_ptr<SpanFile> file);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  bool MustWrite() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || flush_wanted_ || spans_.size() >= kSpanCountMax / 2;
  }
  // Returns how many of the spans were written.
  size_t WriteAll(const std::vector<Span>& spans);
  bool WriteLine();

  const SpanWriterOptions options_;
  mutable absl::Mutex mu_;
  std::vector<Span> spans_ ABSL_GUARDED_BY(mu_);
  Counts counts_ ABSL_GUARDED_BY(mu_);
  uint64_t written_round_ ABSL_GUARDED_BY(mu_) = 0;  // rounds of the thread that have ended
  bool flush_wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Used by the thread only.
  const std::unique_ptr<SpanFile> file_;
  bool failing_ = false;  // the last line was not written; logged once
  std::string line_;
  std::thread thread_;  // the last member, because it uses the others
};

}  // namespace ckv
