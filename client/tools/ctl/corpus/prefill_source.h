// A chunk source that prefills token ids with the reference engine.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "client/tools/ctl/corpus/load_source.h"
#include "client/tools/ctl/corpus/token_lines.h"
#include "client/tools/reference_engine/engine.h"

namespace ckv::ctl {

// Called with the number of tokens prefilled since the last call.
using OnPrefilled = std::function<void(uint64_t tokens)>;

// Opens a source that prefills tokens. Each of the following is prefilled as one sequence, from
// position 0, and is therefore a chain of its own:
//   --standalone        each chunk;
//   --cut document      each document;
//   else                all documents, one after the other.
// The engine's rows depend on tokens only; the extra keys of documents are part of the ids.
// Memory: rows take geometry().token_bytes() per token. If there are several sequences, Read
// prefills them. It keeps the rows of the last one, and of those whose chunks were handed out. A
// single sequence is prefilled here.
//   InvalidArgument     more than 2^20 tokens in one sequence, a duplicate chunk, or an error of
//                       Engine::Prefill.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenPrefill(std::shared_ptr<const Engine> engine,
                                                         TokenDocuments documents,
                                                         const CutOptions& cut, uint32_t threads,
                                                         OnPrefilled on_prefilled);

}  // namespace ckv::ctl
