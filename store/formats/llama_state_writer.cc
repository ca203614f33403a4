// Writes a sequence state. Create writes everything but the keys, in the order of the format:
// magic, version, token ids, cells, and the header of each layer. Write puts a layer's keys at
// their place, in any order, each cell once. Finish refuses a state with missing cells, and gives
// the file its name.

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/geometry.h"
#include "store/formats/llama_state.h"
#include "store/formats/llama_state_words.h"

namespace ckv {
namespace {

constexpr uint64_t kLayerHeadBytes = sizeof(int32_t) + sizeof(uint64_t);
// Cells are written in pieces of this many: 48 KiB.
constexpr uint32_t kCellsAtOnce = 4096;

struct CellWords {
  int32_t position;
  uint32_t sequences;
  int32_t sequence;
};
static_assert(sizeof(CellWords) == 12);

absl::Status CheckSpec(const LlamaStateSpec& spec) {
  const auto refuse = [](std::string_view what, uint64_t value, uint64_t least, uint64_t most) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sequence state: %s %d, must be %d to %d", what, value, least, most));
  };
  if (spec.token_ids.empty() || spec.token_ids.size() > kLlamaTokenCountMax) {
    return refuse("tokens", spec.token_ids.size(), 1, kLlamaTokenCountMax);
  }
  const uint64_t position_max = std::numeric_limits<int32_t>::max() - spec.token_ids.size();
  if (spec.base_position > position_max)
    return refuse("position", spec.base_position, 0, position_max);
  if (spec.cell_count > spec.token_ids.size()) {
    return refuse("cells", spec.cell_count, 0, spec.token_ids.size());
  }
  if (spec.layer_count == 0 || spec.layer_count > kLayerCountMax) {
    return refuse("layers", spec.layer_count, 1, kLayerCountMax);
  }
  if (spec.row_bytes == 0 || spec.row_bytes % 2 != 0 || spec.row_bytes > kLlamaRowBytesMax) {
    return refuse("bytes a row", spec.row_bytes, 2, kLlamaRowBytesMax);
  }
  if (spec.stream_count == 0 || spec.stream_count > kLlamaStreamCountMax) {
    return refuse("streams", spec.stream_count, 1, kLlamaStreamCountMax);
  }
  return absl::OkStatus();
}

uint32_t CellCountOf(const LlamaStateSpec& spec) {
  return spec.cell_count != 0 ? spec.cell_count : static_cast<uint32_t>(spec.token_ids.size());
}

// Appends to a file.
class Appender {
 public:
  explicit Appender(OutputFile& file) : file_(file) {}

  absl::Status Words(std::initializer_list<uint32_t> words) {
    return Bytes(std::as_bytes(std::span(words.begin(), words.size())));
  }
  absl::Status Bytes(std::span<const std::byte> bytes) {
    CKV_RETURN_IF_ERROR(file_.Write(end_, bytes));
    end_ += bytes.size();
    return absl::OkStatus();
  }
  void Skip(uint64_t count) { end_ += count; }
  uint64_t end() const { return end_; }

 private:
  OutputFile& file_;
  uint64_t end_ = 0;
};

absl::Status AppendCells(const LlamaStateSpec& spec, Appender& out) {
  const uint32_t count = CellCountOf(spec);
  const uint64_t first = spec.base_position + spec.token_ids.size() - count;
  std::vector<CellWords> cells;
  for (uint32_t begin = 0; begin < count; begin += kCellsAtOnce) {
    cells.clear();
    for (uint32_t i = begin; i < std::min(count, begin + kCellsAtOnce); ++i) {
      cells.push_back({static_cast<int32_t>(first + i), 1, 0});
    }
    CKV_RETURN_IF_ERROR(out.Bytes(std::as_bytes(std::span(cells))));
  }
  return absl::OkStatus();
}

}  // namespace

LlamaStateWriter::LlamaStateWriter(OutputFile file, const LlamaStateSpec& spec)
    : file_(std::move(file)),
      cell_count_(CellCountOf(spec)),
      row_bytes_(spec.row_bytes),
      written_(spec.layer_count, std::vector<bool>(cell_count_)),
      written_count_(spec.layer_count) {}

absl::StatusOr<LlamaStateWriter> LlamaStateWriter::Create(const std::string& path,
                                                          const LlamaStateSpec& spec) {
  CKV_RETURN_IF_ERROR(CheckSpec(spec));
  CKV_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  LlamaStateWriter writer(std::move(file), spec);
  Appender out(writer.file_);
  CKV_RETURN_IF_ERROR(out.Words(
      {kLlamaFileMagic, kLlamaStateVersion, static_cast<uint32_t>(spec.token_ids.size())}));
  CKV_RETURN_IF_ERROR(out.Bytes(std::as_bytes(spec.token_ids)));
  // The cells are in the first stream. The one that loads them puts them where its sequence is.
  CKV_RETURN_IF_ERROR(out.Words({spec.stream_count, writer.cell_count_}));
  CKV_RETURN_IF_ERROR(AppendCells(spec, out));
  // Values are not transposed: with flash attention.
  CKV_RETURN_IF_ERROR(out.Words({0, spec.layer_count}));
  writer.layers_begin_bytes_ = out.end();
  const uint64_t row_bytes = spec.row_bytes;
  for (uint32_t layer = 0; layer < spec.layer_count; ++layer) {
    CKV_RETURN_IF_ERROR(out.Words({static_cast<uint32_t>(LlamaKeyType::kBf16)}));
    CKV_RETURN_IF_ERROR(out.Bytes(std::as_bytes(std::span(&row_bytes, 1))));
    out.Skip(row_bytes * writer.cell_count_);
  }
  for (uint32_t stream = 1; stream < spec.stream_count; ++stream) {
    CKV_RETURN_IF_ERROR(out.Words({0}));
  }
  return writer;
}

uint64_t LlamaStateWriter::LayerBegin(uint32_t layer) const {
  const uint64_t layer_bytes = kLayerHeadBytes + uint64_t{cell_count_} * row_bytes_;
  return layers_begin_bytes_ + layer * layer_bytes + kLayerHeadBytes;
}

absl::Status LlamaStateWriter::Write(uint32_t layer, uint32_t cell_begin,
                                     std::span<const std::byte> rows) {
  const uint64_t count = rows.size() / row_bytes_;
  if (layer >= written_.size() || rows.size() % row_bytes_ != 0 || cell_begin > cell_count_ ||
      count > cell_count_ - cell_begin) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "sequence state: %d bytes from cell %d on at layer %d; %d cells of %d bytes, %d layers",
        rows.size(), cell_begin, layer, cell_count_, row_bytes_, written_.size()));
  }
  std::vector<bool>& written = written_[layer];
  for (uint64_t i = cell_begin; i < cell_begin + count; ++i) {
    if (written[i]) {
      return absl::InvalidArgumentError(
          absl::StrFormat("sequence state: cell %d of layer %d is written twice", i, layer));
    }
    written[i] = true;
  }
  written_count_[layer] += static_cast<uint32_t>(count);
  return file_.Write(LayerBegin(layer) + uint64_t{cell_begin} * row_bytes_, rows);
}

absl::Status LlamaStateWriter::Finish() && {
  for (size_t layer = 0; layer < written_count_.size(); ++layer) {
    if (written_count_[layer] == cell_count_) continue;
    return absl::InvalidArgumentError(absl::StrFormat("sequence state: layer %d has %d cells of %d",
                                                      layer, written_count_[layer], cell_count_));
  }
  return std::move(file_).Finish();
}

}  // namespace ckv
