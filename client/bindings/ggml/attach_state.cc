#include "client/bindings/ggml/attach_state.h"

#include <cstring>
#include <limits>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "store/formats/llama_state.h"
#include "store/formats/reference_cell.h"

namespace ckv::ggml {
namespace {

constexpr uint32_t kStateMagic = 0xaf143cd8;  // as llama_state_seq_get_data has it

class Writer {
 public:
  template <typename Value>
  void Put(Value value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(value));
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

absl::StatusOr<std::vector<std::byte>> AttachStateOf(const Corpus& corpus, const AttachSpec& spec,
                                                     uint64_t& next_position) {
  const Geometry& geometry = corpus.geometry;
  if (corpus.chunks.empty() || geometry.dtype != RowDtype::kBf16) {
    return absl::InvalidArgumentError(
        absl::StrFormat("corpus '%s' cannot be attached: %d chunks, %s", corpus.name,
                        corpus.chunks.size(), geometry.ToString()));
  }
  if (spec.stream_count == 0 || spec.stream_count > kLlamaStreamCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d streams, must be 1 to %d", spec.stream_count, kLlamaStreamCountMax));
  }
  CellReference reference =
      ReferenceTo(corpus, 0, static_cast<uint32_t>(corpus.chunks.size()), spec.position);
  constexpr uint64_t kPositions = std::numeric_limits<int32_t>::max();  // llama.cpp counts in i32
  if (reference.position > kPositions || reference.token_count > kPositions - reference.position) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d tokens from position %d on: llama.cpp's positions end at %d",
                        reference.token_count, reference.position, kPositions));
  }
  next_position = reference.position + reference.token_count;
  Writer writer;
  writer.Put<uint32_t>(kStateMagic);
  writer.Put<int32_t>(0);  // the sequence it was saved from
  writer.Put<uint32_t>(spec.stream_count);
  writer.Put<uint32_t>(1);  // cells, all in the first stream
  writer.Put<int32_t>(static_cast<int32_t>(next_position - 1));
  writer.Put<uint32_t>(1);
  writer.Put<int32_t>(0);
  writer.Put<uint32_t>(0);  // values are not transposed
  writer.Put<uint32_t>(geometry.layers);
  std::vector<std::byte> row(geometry.row_bytes());
  for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
    reference.layer = layer;
    CKV_RETURN_IF_ERROR(EncodeReference(reference, row));
    writer.Put<int32_t>(static_cast<int32_t>(LlamaKeyType::kBf16));
    writer.Put<uint64_t>(row.size());
    writer.bytes().insert(writer.bytes().end(), row.begin(), row.end());
  }
  for (uint32_t stream = 1; stream < spec.stream_count; ++stream) writer.Put<uint32_t>(0);
  return std::move(writer.bytes());
}

}  // namespace ckv::ggml
