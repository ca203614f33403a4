#include "server/batch/cold_rows.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/base/stripe.h"

namespace ckv {

void ColdRows::Unmap::operator()(std::byte* memory) const { munmap(memory, bytes); }

absl::Status ColdRows::Add(ChunkLocator chunk, const ChunkRows& rows, uint32_t layer,
                           std::span<const uint32_t> stripes) {
  const uint32_t token_count = rows.info().token_count();
  const uint64_t row_bytes = rows.geometry().row_bytes();
  const uint64_t stripe_bytes = kStripeTokens * row_bytes;
  const uint64_t read_bytes = std::min(stripes.size() * stripe_bytes, rows.layer_bytes());
  if (read_bytes > bytes_max_ - bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d bytes of rows that are on disk, %d are read for a request at most",
                        bytes_ + read_bytes, bytes_max_));
  }
  std::byte* memory = nullptr;
  if (const Layer* const before = Find(chunk); before != nullptr) {
    memory = const_cast<std::byte*>(before->rows);
  } else {
    CKV_ASSIGN_OR_RETURN(memory, MapLayer(rows.layer_bytes()));
    layers_[chunk.slot] = {chunk, memory, token_count};
  }
  for (size_t i = 0; i < stripes.size();) {
    size_t end = i + 1;  // the end of a run of neighbours, which is one read
    while (end < stripes.size() && stripes[end] == stripes[end - 1] + 1) ++end;
    const uint32_t token = stripes[i] * kStripeTokens;
    const uint32_t count = std::min((stripes[end - 1] + 1) * kStripeTokens, token_count) - token;
    CKV_RETURN_IF_ERROR(
        rows.Read(layer, token, count, {memory + token * row_bytes, count * row_bytes}));
    i = end;
  }
  bytes_ += read_bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> ColdRows::MapLayer(uint64_t layer_bytes) {
  // Zero bytes cannot be mapped.
  const size_t bytes = std::max<uint64_t>(layer_bytes, 1);
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "no memory for %d bytes of a chunk's rows: %s", bytes, std::strerror(errno)));
  }
  memory_.emplace_back(static_cast<std::byte*>(base), Unmap{bytes});
  return memory_.back().get();
}

const ColdRows::Layer* ColdRows::Find(ChunkLocator chunk) const {
  const auto found = layers_.find(chunk.slot);
  if (found == layers_.end() || found->second.chunk.generation != chunk.generation) return nullptr;
  return &found->second;
}

void SelectedStripes(std::span<const int32_t> indices, uint32_t token_count,
                     std::vector<uint32_t>* stripes) {
  std::vector<bool> selected(StripeCount(token_count));
  for (const int32_t index : indices) {               // by value: read once, judged, then used
    const auto token = static_cast<uint32_t>(index);  // negative ones are beyond any chunk
    if (token < token_count) selected[token / kStripeTokens] = true;
  }
  stripes->clear();
  for (uint32_t s = 0; s < selected.size(); ++s) {
    if (selected[s]) stripes->push_back(s);
  }
}

}  // namespace ckv
