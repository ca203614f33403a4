#include "client/bindings/ggml/reference_reader.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "proto/base/status.h"

namespace ckv::ggml {
namespace {

absl::Status WrongLayer(uint32_t is, uint32_t due) {
  return absl::DataLossError(absl::StrFormat(
      "a reference of layer %d is in the cache of layer %d\n  restore the sequence", is, due));
}

}  // namespace

bool MayBeReference(std::span<const std::byte> row) {
  uint64_t word = 0;
  std::memcpy(&word, row.data(), sizeof(word));
  constexpr uint64_t kQuietNans = 0x7fc0'7fc0'7fc0'7fc0;
  return (word & kQuietNans) == kQuietNans;
}

absl::StatusOr<std::shared_ptr<const Attached>> ReferenceReader::Read(
    std::span<const std::byte> row, uint32_t layer) {
  const absl::string_view bytes(reinterpret_cast<const char*>(row.data()), row.size());
  if (const auto known = rows_.find(bytes); known != rows_.end()) {
    if (known->second.layer != layer) return WrongLayer(known->second.layer, layer);
    return known->second.attached;
  }
  if (!IsReference(row)) {
    return absl::DataLossError(
        "a cell is NaN and no reference\n  decode or restore the sequence again");
  }
  CKV_ASSIGN_OR_RETURN(const CellReference reference, DecodeReference(row));
  if (reference.layer != layer) return WrongLayer(reference.layer, layer);
  // Any of them: an engine with so many reads them all at every token.
  if (rows_.size() >= kRowCountMax) rows_.erase(rows_.begin());
  if (attached_.size() >= kAttachedCountMax) attached_.erase(attached_.begin());
  Attached attached = AttachedBy(reference);
  std::shared_ptr<const Attached>& kept = attached_[attached.Key()];
  if (kept == nullptr) kept = std::make_shared<const Attached>(std::move(attached));
  rows_.try_emplace(std::string(bytes), Known{kept, layer});
  return kept;
}

}  // namespace ckv::ggml
