#include "server/telemetry/span_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr mode_t kFileMode = 0640;  // spans name members and corpora; not for everybody

absl::StatusOr<int> OpenFile(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kFileMode);
  if (fd >= 0) return fd;
  return absl::InvalidArgumentError(
      absl::StrFormat("trace.path: %s: %s", path, std::strerror(errno)));
}

// Writes all of `text`. A file that takes a part of a line ends with half a line, which a reader of
// JSON lines skips.
bool WriteWhole(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpanWriter>> SpanWriter::Start(SpanWriterOptions options) {
  CKV_ASSIGN_OR_RETURN(const int fd, OpenFile(options.path));
  struct stat found {};
  const uint64_t file_bytes = fstat(fd, &found) == 0 ? static_cast<uint64_t>(found.st_size) : 0;
  if (options.unix_offset_ns == 0) options.unix_offset_ns = WallClockAheadNs(*options.clock);
  return std::unique_ptr<SpanWriter>(new SpanWriter(std::move(options), fd, file_bytes));
}

SpanWriter::SpanWriter(SpanWriterOptions options, int fd, uint64_t file_bytes)
    : options_(std::move(options)), fd_(fd), file_bytes_(file_bytes) {
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
  if (fd_ >= 0) close(fd_);
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
  absl::Status status;
  if (file_bytes_ > 0 && file_bytes_ + line_.size() > options_.file_bytes_max) status = Rotate();
  if (status.ok() && (fd_ < 0 || !WriteWhole(fd_, line_))) {
    status = absl::UnavailableError(absl::StrFormat("%s: %s", options_.path, std::strerror(errno)));
  }
  if (!status.ok() && !failing_)
    Log().warn("spans are dropped until they can be written again: {}", status.ToString());
  failing_ = !status.ok();
  if (status.ok()) file_bytes_ += line_.size();
  return status.ok();
}

absl::Status SpanWriter::Rotate() {
  const std::string before = options_.path + ".1";
  if (std::rename(options_.path.c_str(), before.c_str()) != 0 && errno != ENOENT)
    return absl::UnavailableError(absl::StrFormat("%s: %s", before, std::strerror(errno)));
  CKV_ASSIGN_OR_RETURN(const int fd, OpenFile(options_.path));
  close(std::exchange(fd_, fd));
  file_bytes_ = 0;
  return absl::OkStatus();
}

}  // namespace ckv
