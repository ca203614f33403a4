// Takes the rows of `ckvctl fetch` into a file: safetensors, or a sequence state of llama.cpp.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/ctl/ctl.h"
#include "client/ctl/fleet.h"
#include "proto/corpus.h"

namespace ckv::ctl {

// One thread at a time. A sink that is not finished leaves no file.
class FetchSink {
 public:
  virtual ~FetchSink() = default;

  // Takes rows of a layer, whose first is that of token `token` of all that are fetched.
  virtual absl::Status Take(uint32_t layer, uint64_t token, std::span<const std::byte> rows) = 0;
  // Writes what is not written yet, and gives the file its name.
  virtual absl::Status Finish() = 0;
};

struct FetchFile {
  std::string path;
  uint64_t token_count = 0;
  uint64_t position = 0;  // the first token's
};

// The rows are gathered in memory before they are written. The file is one of rows without token
// ids (store/formats/import.h).
//   InvalidArgument     there are more than 4 GiB.
absl::StatusOr<std::unique_ptr<FetchSink>> OpenTensorSink(const FetchFile& file,
                                                          const Geometry& geometry);

// Rows are written as they come. `streams` are those of the cache that is to load the state.
//   InvalidArgument     the rows are not bf16, or LlamaStateWriter::Create.
//   FailedPrecondition, Unavailable  as OutputFile.
absl::StatusOr<std::unique_ptr<FetchSink>> OpenLlamaSink(const FetchFile& file,
                                                         const Geometry& geometry,
                                                         std::span<const int32_t> token_ids,
                                                         uint32_t streams);

// The token ids of these chunks, in order. A requester does not give them: a live holder of each
// chunk is asked.
//   DeadlineExceeded    they had not all come at `deadline`.
//   NotFound            no live holder has a chunk; names it.
//   else the holder's error.
absl::StatusOr<std::vector<int32_t>> AskForTokenIds(Fleet& fleet, const Corpus& corpus,
                                                    std::span<const uint32_t> ordinals,
                                                    Instant deadline);

}  // namespace ckv::ctl
