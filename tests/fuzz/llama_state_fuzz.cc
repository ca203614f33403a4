// Any bytes as a sequence state of llama.cpp: what is accepted must hold what its head promises,
// and every byte it gives out must be there to read.

#include "store/formats/llama_state.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/base/status.h"
#include "proto/geometry.h"
#include "store/memory/chunk.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  const auto state = ckv::LlamaState::Parse(bytes);
  if (!state.ok()) {
    CKV_CHECK(absl::IsInvalidArgument(state.status()) ||
              absl::IsFailedPrecondition(state.status()));
    return 0;
  }
  const uint32_t count = state->token_count();
  CKV_CHECK(count >= 1 && (state->token_ids().empty() || state->token_ids().size() == count));
  CKV_CHECK(uint64_t{state->base_position()} + count <= (uint64_t{1} << 31));
  CKV_CHECK(state->layer_count() >= 1 && state->layer_count() <= ckv::kLayerCountMax);
  CKV_CHECK(state->row_bytes() >= 2 && state->row_bytes() <= ckv::kLlamaRowBytesMax);
  CKV_CHECK(state->stream_count() >= 1 && state->stream_count() <= ckv::kLlamaStreamCountMax);
  for (const int32_t id : state->token_ids()) CKV_CHECK(id >= 0);
  const std::byte* behind = bytes.data();
  for (uint32_t layer = 0; layer < state->layer_count(); ++layer) {
    const std::span<const std::byte> rows = state->Rows(layer, 0, count);
    CKV_CHECK(rows.size() == size_t{count} * state->row_bytes());
    CKV_CHECK(rows.data() >= behind && rows.data() + rows.size() <= bytes.data() + size);
    behind = rows.data() + rows.size();
    ckv::ChecksumOf(rows);  // reads every byte, so that a sanitizer sees one that is not there
  }
  return 0;
}
