// One measurement of a characterization, and the CSV file that holds them. A file grows line by
// line, so a run that was cut short continues.

#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckv {

enum class Sweep : uint8_t {
  kRoute,       // one layer of one chunk, over query rows x tokens
  kFetch,       // a whole chunk, all layers, spliced into a cache here, over tokens
  kLocal,       // a whole chunk prefilled here, over tokens
  kHere,        // one layer attended here, over query rows x tokens
  kFanIn,       // route of one token's query rows, over callers at once of one holder
  kKernel,      // route of several requesters' rows in one batch, over requesters
  kScatter,     // route of a selection, all layers one after another, over rows x holders
  kGather,      // fetch of the same selection's rows, all layers at once, over rows x holders
  kStaging,     // fetch of one layer, over pulls at once from one holder
  kCongestion,  // route, over query rows x flows at once on one link
  kStore,       // route of a selection, over rows x chunks of the store that it is chosen from
  kPayload,     // route over the widths of rows: `tokens` is q + p, the bytes of a query row and a
                // partial row
};
// Returns "route", "fetch", "local", "here", "fan-in", "kernel", "scatter", "gather", "staging",
// "congestion", "store" or "payload".
std::string_view SweepName(Sweep sweep);
std::optional<Sweep> ParseSweepName(std::string_view name);

// Identifies a measurement. Equal keys are the same measurement.
struct SampleKey {
  Sweep sweep = Sweep::kRoute;
  std::string fabric;  // "shm", "tcp", "verbs"; empty if none is used
  // M_q; 0 if none are sent. For kKernel, the query rows of each requester.
  uint32_t query_rows = 0;
  uint64_t tokens = 0;    // tokens of the chunk, or rows of the selection
  uint32_t parallel = 1;  // requesters, callers, holders, pulls, flows or chunks

  friend auto operator<=>(const SampleKey&, const SampleKey&) = default;
};

struct Sample {
  SampleKey key;
  double us = 0;        // mean of `runs` rounds or calls (TrimmedMean)
  double model_us = 0;  // the cost model's value; 0 if it has none
  uint32_t runs = 0;
  uint64_t bytes_out = 0, bytes_in = 0;  // bytes on the lanes in one run
  double error_us = 0;                   // standard error of `us`; 0 if not known
  double kernel_us = 0;                  // the part of `us` in the holder's kernel; 0 if not known
  // The upper quartile of the repeats divided by the lower one (QuartileRatio); 0 if not known.
  double spread = 0;
  double model_kernel_us = 0;  // the cost model's value of `kernel_us`; 0 if it has none
};

// Finds the measurement with that key; null if there is none.
const Sample* FindSample(std::span<const Sample> samples, const SampleKey& key);

// The file of a run. Its first line names the columns, and its second is a comment with the
// subject. Samples of another subject are not mixed in.
class SampleFile {
 public:
  // Opens or creates the file and reads its lines. An incomplete last line, left by a cut-off run,
  // is removed.
  //   InvalidArgument     it is another kind of file or of another subject, has more than
  //                       kLineCountMax lines, or has a malformed line (with its number).
  //   Unavailable         it cannot be opened or written; gives the system's reason.
  static absl::StatusOr<SampleFile> Open(const std::string& path, const std::string& subject);
  static constexpr size_t kLineCountMax = 100'000;

  const std::vector<Sample>& samples() const { return samples_; }
  const Sample* Find(const SampleKey& key) const;
  // Appends a sample. When it returns, the sample survives the end of this process.
  absl::Status Add(const Sample& sample);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  std::string path_;
  std::vector<Sample> samples_;
};

// Formats one line without its end, and parses it back.
std::string FormatSample(const Sample& sample);
//   InvalidArgument     names the column.
absl::StatusOr<Sample> ParseSample(std::string_view line);
inline constexpr std::string_view kSampleColumns =
    "sweep,fabric,query_rows,tokens,parallel,us,model_us,runs,bytes_out,bytes_in,error_us,"
    "kernel_us,spread,model_kernel_us";

}  // namespace ckv
