// Chunks of the sequences that a llama.cpp engine prefilled.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ctl/corpus/load_source.h"

namespace ckv::ctl {

struct LlamaOptions {
  // A JSON file (store/formats/geometry_json.h): the model that the engine had. A state does not
  // say by which frequencies its rows were rotated, so nobody can check them.
  std::string geometry;
  // A .npy file of integers of 4 or 8 bytes, [tokens], for a state that has no token ids.
  std::string token_ids;
  // A JSON file (store/formats/extra_keys_json.h), for one state; empty if there are none.
  std::string extra_keys = {};
};

// The chunks of sequence states (store/formats/llama_state.h), in order, as of files of rows. Keys
// of f16 are rounded to bf16, to nearest even, as a chunk is read. Files are mapped, and of their
// rows only those of chunks that are given out stay in memory.
//   NotFound            no such file.
//   FailedPrecondition  a state of another version.
//   InvalidArgument     an option is missing or has no use, or a file is not a state of this
//                       geometry; says which and why.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenLlamaStates(const std::vector<std::string>& paths,
                                                             const LlamaOptions& options,
                                                             const CutOptions& cut,
                                                             uint32_t token_count_max);

}  // namespace ckv::ctl
