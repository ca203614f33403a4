// Creates, in memory, the state of a llama.cpp sequence that attends the chunks of a corpus.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/corpus.h"

namespace ckv::ggml {

struct AttachSpec {
  std::optional<uint64_t> position;  // position of the first token; if unset, the canonical one
  // Streams of the engine's cache: the number of its sequences, or 1 if the cache is unified.
  uint32_t stream_count = 1;
};

// Returns the state in the format of llama_state_seq_set_data: one cell a layer, which represents
// the whole corpus (store/formats/reference_cell.h). The sequence continues at `next_position`.
//   InvalidArgument     the corpus has no chunks, its rows are not bf16, or llama.cpp does not
//                       support the positions or the number of streams.
absl::StatusOr<std::vector<std::byte>> AttachStateOf(const Corpus& corpus, const AttachSpec& spec,
                                                     uint64_t& next_position);

}  // namespace ckv::ggml
