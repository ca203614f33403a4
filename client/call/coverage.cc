#include "client/call/coverage.h"

#include "absl/strings/str_format.h"

namespace ckv {

void Coverage::Begin(uint32_t piece_count, uint32_t row_count) {
  row_count_ = row_count;
  next_row_.assign(piece_count, 0);
}

absl::Status Coverage::Cover(uint32_t piece, uint32_t row_begin, uint32_t row_count) {
  if (piece >= next_row_.size() || row_count > row_count_ || row_begin > row_count_ - row_count) {
    return absl::InternalError(
        absl::StrFormat("coverage: rows %d+%d of chunk %d are not of this call (%d chunks, %d "
                        "rows)",
                        row_begin, row_count, piece, next_row_.size(), row_count_));
  }
  if (row_begin != next_row_[piece]) {
    return absl::InternalError(absl::StrFormat(
        "coverage: chunk %d has rows up to %d and got rows %d+%d%s", piece, next_row_[piece],
        row_begin, row_count, row_begin < next_row_[piece] ? ", twice" : ", with a gap"));
  }
  next_row_[piece] += row_count;
  return absl::OkStatus();
}

absl::Status Coverage::CheckComplete() const {
  for (size_t piece = 0; piece < next_row_.size(); ++piece) {
    if (next_row_[piece] != row_count_) {
      return absl::InternalError(absl::StrFormat("coverage: chunk %d has %d of %d rows", piece,
                                                 next_row_[piece], row_count_));
    }
  }
  return absl::OkStatus();
}

}  // namespace ckv
