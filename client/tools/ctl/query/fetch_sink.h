// Writes the rows of `ckvctl fetch` to a file: safetensors, or a llama.cpp sequence state.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/fleet.h"
#include "proto/corpus.h"

namespace ckv::ctl {

// Used by one thread at a time. A sink that is not finished leaves no file.
class FetchSink {
 public:
  virtual ~FetchSink() = default;

  // Accepts rows of one tensor. The first row is that of token `token`, counted over all fetched
  // tokens.
  virtual absl::Status Take(uint32_t tensor, uint64_t token, std::span<const std::byte> rows) = 0;
  // Writes what is still buffered, and gives the file its final name.
  virtual absl::Status Finish() = 0;
};

struct FetchFile {
  std::string path;
  uint64_t token_count = 0;
  uint64_t position = 0;  // position of the first token
};

// Collects the rows in memory before writing them. The file is a row file without token ids
// (store/formats/import.h).
//   InvalidArgument     there are more than 4 GiB.
absl::StatusOr<std::unique_ptr<FetchSink>> OpenTensorSink(const FetchFile& file,
                                                          const Geometry& geometry);

// Writes rows as they arrive. `streams` is the number of streams of the cache that will load the
// state.
//   InvalidArgument     the rows are not bf16, or an error of LlamaStateWriter::Create.
//   FailedPrecondition, Unavailable  as OutputFile.
absl::StatusOr<std::unique_ptr<FetchSink>> OpenLlamaSink(const FetchFile& file,
                                                         const Geometry& geometry,
                                                         std::span<const int32_t> token_ids,
                                                         uint32_t streams);

// Returns the token ids of these chunks, in order. A requester does not provide them, so this
// queries a live holder of each chunk.
//   DeadlineExceeded    some had not arrived by `deadline`.
//   NotFound            no live holder has a chunk; names the chunk.
//   else the holder's error.
absl::StatusOr<std::vector<int32_t>> FetchTokenIds(Fleet& fleet, const Corpus& corpus,
                                                   std::span<const uint32_t> ordinals,
                                                   Instant deadline);

}  // namespace ckv::ctl
