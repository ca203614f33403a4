#include "server/telemetry/span_writer.h"

#include <algorithm>
#include <utility>

#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {
absl::StatusOr<std::unique_ptr<SpanWriter>> SpanWriter::Start(SpanWriterOptions options) {
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<SpanFile> file,
                       SpanFile::Open(options.path, options.file_bytes_max));
  if (options.unix_offset_ns == 0) options.unix_offset_ns = WallClockAheadNs(*options.clock);
  return std::unique_ptr<SpanWriter>(new SpanWriter(std::move(options), std::move(file)));
}

SpanWriter::SpanWriter(SpanWriterOptions options, std::unique_ptr<SpanFile> file)
    : options_(std::move(options)), file_(std::move(file)) {
  {
    absl::MutexLock lock(&mu_);
    spans_.reserve(kSpanCountMax);
  }
  thread_ = std::thread([this] { Run(); });
}

SpanWriter::~SpanWriter() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void SpanWriter::Record(const Span& span) noexcept {
  absl::MutexLock lock(&mu_);
  ++counts_.recorded;
  if (spans_.size() == kSpanCountMax) {
    ++counts_.dropped;
  } else {
    spans_.push_back(span);
  }
}

SpanSink::Counts SpanWriter::counts() const {
  absl::MutexLock lock(&mu_);
  return counts_;
}

void SpanWriter::Flush() {
  absl::MutexLock lock(&mu_);
  // A round that is under way may have begun before the last span.
  for (int round = 0; round < 2; ++round) {
    flush_wanted_ = true;
    const uint64_t before = written_round_;
    const auto ended = [this, before]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return written_round_ > before; };
    mu_.Await(absl::Condition(&ended));
  }
}

void SpanWriter::Run() {
  std::vector<Span> taken;
  taken.reserve(kSpanCountMax);
  const auto must_write = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return MustWrite(); };
  for (bool last = false; !last;) {
    {
      absl::MutexLock lock(&mu_);
      options_.clock->Await(mu_, absl::Condition(&must_write),
                            options_.clock->Now() + kFlushPeriod);
      last = stopping_;
      flush_wanted_ = false;
      taken.swap(spans_);
    }
    const size_t written = WriteAll(taken);
    absl::MutexLock lock(&mu_);
    counts_.dropped += taken.size() - written;
    ++written_round_;
    taken.clear();
  }
}

size_t SpanWriter::WriteAll(const std::vector<Span>& spans) {
  size_t written = 0;
  for (size_t begin = 0; begin < spans.size(); begin += kSpansPerLineMax) {
    const size_t count = std::min(kSpansPerLineMax, spans.size() - begin);
    line_.clear();
    AppendOtlpLine(options_.resource, std::span(spans).subspan(begin, count),
                   options_.unix_offset_ns, line_);
    if (WriteLine()) written += count;
  }
  return written;
}

bool SpanWriter::WriteLine() {
  const absl::Status status = file_->Write(line_);
  if (!status.ok() && !failing_)
    Log().warn("spans are dropped until they can be written again: {}", status.ToString());
  failing_ = !status.ok();
  return status.ok();
}

}  // namespace ckv
