// The file of samples: a line of columns, a line with the subject, then one line for each sample.
// Open reads all whole lines, refuses another version or subject, and cuts off a line that is not
// whole. Add appends a line and flushes it, so that a run that is cut off can resume.
// Used by one thread.

#include "client/tools/characterize/sample.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr std::array<std::pair<Sweep, std::string_view>, 12> kSweepNames = {{
    {Sweep::kRoute, "route"},
    {Sweep::kFetch, "fetch"},
    {Sweep::kLocal, "local"},
    {Sweep::kHere, "here"},
    {Sweep::kFanIn, "fan-in"},
    {Sweep::kKernel, "kernel"},
    {Sweep::kScatter, "scatter"},
    {Sweep::kGather, "gather"},
    {Sweep::kStaging, "staging"},
    {Sweep::kCongestion, "congestion"},
    {Sweep::kStore, "store"},
    {Sweep::kPayload, "payload"},
}};
constexpr size_t kColumnCount = 14;
constexpr size_t kLineBytesMax = 512;

absl::Status FileError(const std::string& path, const char* what) {
  return absl::UnavailableError(absl::StrFormat("%s: %s: %s", path, what, std::strerror(errno)));
}

std::string SubjectLine(const std::string& subject) { return "# " + subject; }

template <typename Integer>
absl::Status ParseInteger(const std::string& text, const char* column, Integer* value) {
  if (absl::SimpleAtoi(text, value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s is '%s'", column, text));
}

absl::Status ParseTime(const std::string& text, const char* column, double* value) {
  if (absl::SimpleAtod(text, value) && std::isfinite(*value) && *value >= 0)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s is '%s'", column, text));
}

struct Contents {
  std::vector<Sample> samples;
  size_t whole_bytes = 0;  // up to the end of the last whole line
};

absl::StatusOr<Contents> ReadLines(const std::string& path, const std::string& text,
                                   const std::string& subject) {
  Contents contents;
  size_t number = 0;
  for (size_t end = text.find('\n'); end != std::string::npos;
       end = text.find('\n', contents.whole_bytes)) {
    const std::string line = text.substr(contents.whole_bytes, end - contents.whole_bytes);
    contents.whole_bytes = end + 1;
    ++number;
    const auto refuse = [&](const std::string& why) {
      return absl::InvalidArgumentError(absl::StrFormat("%s:%d: %s", path, number, why));
    };
    if (number > SampleFile::kLineCountMax) return refuse("too many lines");
    if (number == 1 && line != kSampleColumns) {
      return refuse("not a file of samples, or of another version: give another folder");
    }
    if (number == 2 && line != SubjectLine(subject)) {
      return refuse(absl::StrFormat("samples of '%s', this run measures '%s': give another folder",
                                    line.substr(0, kLineBytesMax), subject));
    }
    if (number <= 2) continue;
    auto sample = ParseSample(line);
    if (!sample.ok()) return refuse(std::string(sample.status().message()));
    contents.samples.push_back(*std::move(sample));
  }
  return contents;
}

}  // namespace

std::string_view SweepName(Sweep sweep) {
  for (const auto& [value, name] : kSweepNames) {
    if (value == sweep) return name;
  }
  return "unknown";
}

std::optional<Sweep> ParseSweepName(std::string_view name) {
  for (const auto& [value, known] : kSweepNames) {
    if (known == name) return value;
  }
  return std::nullopt;
}

std::string FormatSample(const Sample& sample) {
  const SampleKey& key = sample.key;
  return absl::StrFormat("%s,%s,%d,%d,%d,%.6g,%.6g,%d,%d,%d,%.6g,%.6g,%.6g,%.6g",
                         std::string(SweepName(key.sweep)), key.fabric, key.query_rows, key.tokens,
                         key.parallel, sample.us, sample.model_us, sample.runs, sample.bytes_out,
                         sample.bytes_in, sample.error_us, sample.kernel_us, sample.spread,
                         sample.model_kernel_us);
}

absl::StatusOr<Sample> ParseSample(std::string_view line) {
  if (line.size() > kLineBytesMax) return absl::InvalidArgumentError("a line too long");
  const std::vector<std::string> fields =
      absl::StrSplit(absl::string_view(line.data(), line.size()), ',');
  if (fields.size() != kColumnCount) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d columns, expected %d", fields.size(), kColumnCount));
  }
  Sample sample;
  const std::optional<Sweep> sweep = ParseSweepName(fields[0]);
  if (!sweep) return absl::InvalidArgumentError(absl::StrFormat("sweep is '%s'", fields[0]));
  sample.key.sweep = *sweep;
  sample.key.fabric = fields[1];
  CKV_RETURN_IF_ERROR(ParseInteger(fields[2], "query_rows", &sample.key.query_rows));
  CKV_RETURN_IF_ERROR(ParseInteger(fields[3], "tokens", &sample.key.tokens));
  CKV_RETURN_IF_ERROR(ParseInteger(fields[4], "parallel", &sample.key.parallel));
  CKV_RETURN_IF_ERROR(ParseTime(fields[5], "us", &sample.us));
  CKV_RETURN_IF_ERROR(ParseTime(fields[6], "model_us", &sample.model_us));
  CKV_RETURN_IF_ERROR(ParseInteger(fields[7], "runs", &sample.runs));
  CKV_RETURN_IF_ERROR(ParseInteger(fields[8], "bytes_out", &sample.bytes_out));
  CKV_RETURN_IF_ERROR(ParseInteger(fields[9], "bytes_in", &sample.bytes_in));
  CKV_RETURN_IF_ERROR(ParseTime(fields[10], "error_us", &sample.error_us));
  CKV_RETURN_IF_ERROR(ParseTime(fields[11], "kernel_us", &sample.kernel_us));
  CKV_RETURN_IF_ERROR(ParseTime(fields[12], "spread", &sample.spread));
  CKV_RETURN_IF_ERROR(ParseTime(fields[13], "model_kernel_us", &sample.model_kernel_us));
  return sample;
}

absl::StatusOr<SampleFile> SampleFile::Open(const std::string& path, const std::string& subject) {
  SampleFile file;
  file.path_ = path;
  std::ostringstream text;
  if (std::ifstream in(path, std::ios::binary); in) text << in.rdbuf();
  CKV_ASSIGN_OR_RETURN(Contents contents, ReadLines(path, text.str(), subject));
  // A file that was being written begins with what a new one begins with.
  if (contents.whole_bytes == 0 && !std::string(kSampleColumns).starts_with(text.str()))
    return FileError(path, "is no file of samples: use another --dir");
  file.samples_ = std::move(contents.samples);
  // Drops what is left of a line that was being written.
  file.file_.reset(std::fopen(path.c_str(), contents.whole_bytes == 0 ? "wb" : "r+b"));
  if (file.file_ == nullptr) return FileError(path, "cannot be opened");
  if (std::fseek(file.file_.get(), static_cast<long>(contents.whole_bytes), SEEK_SET) != 0 ||
      ftruncate(fileno(file.file_.get()), static_cast<off_t>(contents.whole_bytes)) != 0) {
    return FileError(path, "cannot be written");
  }
  const bool fresh = contents.whole_bytes <= kSampleColumns.size() + 1;
  if (fresh) {
    std::rewind(file.file_.get());
    std::fprintf(file.file_.get(), "%s\n%s\n", std::string(kSampleColumns).c_str(),
                 SubjectLine(subject).c_str());
    if (std::fflush(file.file_.get()) != 0) return FileError(path, "cannot be written");
  }
  return file;
}

const Sample* FindSample(std::span<const Sample> samples, const SampleKey& key) {
  const auto found = std::find_if(samples.begin(), samples.end(),
                                  [&key](const Sample& sample) { return sample.key == key; });
  return found == samples.end() ? nullptr : &*found;
}

const Sample* SampleFile::Find(const SampleKey& key) const { return FindSample(samples_, key); }

absl::Status SampleFile::Add(const Sample& sample) {
  std::fprintf(file_.get(), "%s\n", FormatSample(sample).c_str());
  if (std::fflush(file_.get()) != 0) return FileError(path_, "cannot be written");
  samples_.push_back(sample);
  return absl::OkStatus();
}

}  // namespace ckv
