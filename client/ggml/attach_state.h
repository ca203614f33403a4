// Makes the state of a sequence of llama.cpp that attends chunks of a corpus, in memory.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/corpus.h"

namespace ckv::ggml {

struct AttachSpec {
  std::optional<uint64_t> position;  // the first token's; if unset, the canonical one
  // Streams of the engine's cache: as many as it has sequences, or 1 if it is unified.
  uint32_t stream_count = 1;
};

// Returns what llama_state_seq_set_data takes: one cell a layer, which stands for the whole corpus
// (store/formats/reference_cell.h). The sequence goes on at `next_position`.
//   InvalidArgument     there is no token, the rows are not bf16, or a position or the number of
//                       streams is none of llama.cpp's.
absl::StatusOr<std::vector<std::byte>> AttachStateOf(const Corpus& corpus, const AttachSpec& spec,
                                                     uint64_t& next_position);

}  // namespace ckv::ggml
