#include "server/score/candidate_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace ckv {

Candidates::Candidates(std::string tenant, std::span<const Chunk> chunks)
    : tenant_(std::move(tenant)) {
  uint32_t row = 0;
  places_.reserve(chunks.size());
  for (const auto& [chunk, token_count] : chunks) {
    places_.push_back({chunk, {row, row + token_count}});
    row += token_count;
  }
  std::sort(places_.begin(), places_.end(),
            [](const Place& a, const Place& b) { return a.chunk.slot < b.chunk.slot; });
}

void Candidates::Add(std::span<const ScoredRow> best) {
  rows_.insert(rows_.end(), best.begin(), best.end());
  ends_.push_back(rows_.size());
}

std::optional<Candidates::Rows> Candidates::RowsOf(ChunkLocator chunk) const {
  const auto place =
      std::lower_bound(places_.begin(), places_.end(), chunk.slot,
                       [](const Place& p, uint32_t slot) { return p.chunk.slot < slot; });
  if (place == places_.end() || place->chunk.slot != chunk.slot ||
      place->chunk.generation != chunk.generation) {
    return std::nullopt;
  }
  return place->rows;
}

size_t Candidates::bytes() const {
  return sizeof(*this) + places_.size() * sizeof(Place) + rows_.size() * sizeof(ScoredRow) +
         ends_.size() * sizeof(size_t);
}

void CandidateTable::Insert(uint64_t session_ordinal, uint64_t number,
                            std::shared_ptr<const Candidates> candidates) {
  if (kept_.contains(number)) Drop(number);
  const size_t bytes = candidates->bytes();
  while (bytes_ != 0 && bytes_ + bytes > bytes_max_) {
    const auto largest = std::max_element(
        accounts_.begin(), accounts_.end(),
        [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
    Drop(largest->second.numbers.front());
  }
  kept_[number] = {session_ordinal, std::move(candidates)};
  Account& account = accounts_[session_ordinal];
  account.numbers.push_back(number);
  account.bytes += bytes;
  bytes_ += bytes;
}

void CandidateTable::Drop(uint64_t number) {
  const auto kept = kept_.find(number);
  const auto found = accounts_.find(kept->second.session_ordinal);
  Account& account = found->second;
  account.bytes -= kept->second.candidates->bytes();
  bytes_ -= kept->second.candidates->bytes();
  account.numbers.erase(std::find(account.numbers.begin(), account.numbers.end(), number));
  if (account.numbers.empty()) accounts_.erase(found);
  kept_.erase(kept);
}

const Candidates* CandidateTable::Find(const std::string& tenant, uint64_t number) const {
  const auto found = kept_.find(number);
  if (found == kept_.end() || found->second.candidates->tenant() != tenant) return nullptr;
  return found->second.candidates.get();
}

absl::Status CandidatesGone(uint64_t number) {
  return absl::OutOfRangeError(
      absl::StrFormat("candidates %x are not kept here, or no longer: score again", number));
}

}  // namespace ckv
