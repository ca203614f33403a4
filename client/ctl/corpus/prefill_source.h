// Chunks that the reference engine prefills from token ids.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "client/ctl/corpus/load_source.h"
#include "client/ctl/corpus/token_lines.h"
#include "client/engine/engine.h"

namespace ckv::ctl {

// Told of tokens that were prefilled since it was told last.
using OnPrefilled = std::function<void(uint64_t tokens)>;

// Opens a source that prefills tokens. Each of these goes in one go, from position 0 on, and so is
// a chain of its own:
//   --standalone        each chunk;
//   --cut document      each document;
//   else                all documents, one behind the other.
// The engine's rows depend on tokens only; extra keys of documents are part of the ids.
// Memory: rows take geometry().token_bytes() a token. If there are several goes, the rows of the
// last one are kept, and those of which chunks were given out. A single go is prefilled here, and
// several by Read.
//   InvalidArgument     more than 2^20 tokens in one go; a chunk twice; or Engine::Prefill.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenPrefill(std::shared_ptr<const Engine> engine,
                                                         TokenDocuments documents,
                                                         const CutOptions& cut, uint32_t threads,
                                                         OnPrefilled on_prefilled);

}  // namespace ckv::ctl
