// A chunk source for sequences that a llama.cpp engine prefilled.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tools/ctl/corpus/load_source.h"

namespace ckv::ctl {

struct LlamaOptions {
  // A JSON file (store/formats/geometry_json.h) of the engine's model. A state does not contain the
  // RoPE frequencies of its rows, so they cannot be checked.
  std::string geometry;
  // A .npy file of 4- or 8-byte integers, [tokens], for a state without token ids.
  std::string token_ids;
  // A JSON file (store/formats/extra_keys_json.h) for one state; empty if there is none.
  std::string extra_keys = {};
};

// Opens the chunks of sequence states (store/formats/llama_state.h), in order, like those of row
// files. When a chunk is read, f16 keys are rounded to bf16, to nearest even. The files are mapped;
// only the rows of chunks that were handed out stay in memory.
//   NotFound            no such file.
//   FailedPrecondition  a state of an unsupported version.
//   InvalidArgument     an option is missing or has no use, or a file is not a state of this
//                       geometry; names the cause.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenLlamaStates(const std::vector<std::string>& paths,
                                                             const LlamaOptions& options,
                                                             const CutOptions& cut,
                                                             uint32_t token_count_max);

}  // namespace ckv::ctl
