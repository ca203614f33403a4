// Chunks that the reference engine prefills from token ids.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "client/ctl/load_source.h"
#include "client/ctl/token_lines.h"
#include "client/engine.h"

namespace ckv::ctl {

// Told of tokens that were prefilled since it was told last.
using OnPrefilled = std::function<void(uint64_t tokens)>;

// What is prefilled in one go, from position 0 on, and so is a chain of its own:
//   --standalone        each chunk;
//   --cut document      each document;
//   else                all documents, one behind the other.
// Memory: rows of what is prefilled in one go, geometry().token_bytes() a token; of more than one,
// the last and those of which chunks were given out. All in one go is prefilled here, and the rest
// by Read.
//   InvalidArgument     more than 2^20 tokens in one go; a chunk twice; or Engine::Prefill.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenPrefill(std::shared_ptr<const Engine> engine,
                                                         TokenDocuments documents,
                                                         const CutOptions& cut, uint32_t threads,
                                                         OnPrefilled on_prefilled);

}  // namespace ckv::ctl
