#include "server/directory/tables/epoch_blocks.h"

#include <algorithm>
#include <utility>

#include "server/directory/tables/change_numbers.h"

namespace ckv {

void EpochBlocks::Replay(uint64_t epoch_max) {
  last_ = std::max(last_, epoch_max);
  durable_max_ = std::max(durable_max_, epoch_max);
}

void EpochBlocks::NotePrevious(Epoch before) {
  saw_earlier_incarnation_ |= before.value != 0 && before.value <= first_;
  if (before.value > last_ && before.value - last_ <= kNumberLeapMax) last_ = before.value;
}

uint64_t EpochBlocks::BeginReservation() {
  return std::exchange(is_reserving_, true) ? 0 : last_ + kBlockSize;
}

void EpochBlocks::Settle(uint64_t epoch_max, const absl::Status& status) {
  is_reserving_ = false;
  reserved_ = status;
  if (status.ok()) durable_max_ = std::max(durable_max_, epoch_max);
}

}  // namespace ckv
