// The file that describes a corpus, its load, and machines on offer to ckvctl plan corpus.
// client/tools/ctl/plan/corpus_example.h has every key with a comment.
//
// A calibration (`ckvctl calibrate --profile FILE`, `ckvctl characterize`) is looked for beside the
// profile. It gives a machine its kernel, round trip and bandwidth, and requesters their own costs.
// Keys of the profile then override the round trip and the bandwidth, for another network.

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/sizing/corpus_plan.h"

namespace ckv::ctl {

// Parses a profile. `path` begins each error, and its folder is that of calibrations.
//   InvalidArgument     "FILE:LINE: KEY: what is wrong".
absl::StatusOr<CorpusPlanInput> ParseCorpusProfile(const std::string& path,
                                                   const std::string& text);

// Reads and parses a profile.
//   NotFound            there is no file of that name.
//   InvalidArgument     it cannot be read, is larger than kPlanFileBytesMax, or as above.
absl::StatusOr<CorpusPlanInput> ReadCorpusProfile(const std::string& path);

}  // namespace ckv::ctl
