#include "server/upkeep/scrubber.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "proto/base/log.h"

namespace ckv {
namespace {

// Ids listed at a time. The table is locked for 64 of them, which takes some 10 us.
constexpr size_t kPageIds = 64;
// The most unreadable chunks that are remembered as reported.
constexpr size_t kUnreadableCountMax = 4096;

// Constants of linux/ioprio.h: this thread reads only while no other thread uses the disk.
constexpr int kIoprioWhoProcess = 1, kIoprioClassIdle = 3, kIoprioClassShift = 13;

ChunkId DrawId(uint64_t seed) {
  std::mt19937_64 random(seed);
  ChunkId id;
  for (size_t i = 0; i < id.bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(id.bytes.data() + i, &word, sizeof(word));
  }
  return id;
}

}  // namespace

Scrubber::Scrubber(const ScrubberOptions& options, ChunkStore* store, ScrubCounters* counters)
    : options_(options), store_(*store), counters_(*counters), next_(options.clock->Now()) {
  if (options_.bytes_per_second > 0) thread_ = Thread([this] { Run(); });
}

Scrubber::~Scrubber() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Scrubber::Run() {
  // Changes nothing if the system has no such classes.
  (void)syscall(SYS_ioprio_set, kIoprioWhoProcess, 0, kIoprioClassIdle << kIoprioClassShift);
  std::optional<ChunkId> after = DrawId(options_.seed);
  while (true) {
    const Instant begin = options_.clock->Now();
    if (!Pass(after)) return;
    // The first pass began in the middle. The part before that is next, at once.
    const bool whole = !std::exchange(after, std::nullopt).has_value();
    if (!whole) continue;
    counters_.pass_count.fetch_add(1, std::memory_order_relaxed);
    if (!AwaitUntil(begin + options_.pass_period_min)) return;
  }
}

bool Scrubber::Pass(std::optional<ChunkId> after) {
  while (true) {
    const std::vector<ChunkListing> page = store_.table().List(after, kPageIds);
    if (page.empty()) return true;
    for (const ChunkListing& listing : page) {
      if (!CheckOne(listing.id)) return false;
    }
    after = page.back().id;
  }
}

bool Scrubber::CheckOne(const ChunkId& id) {
  const auto locator = store_.table().Locate(id);
  if (!locator.ok()) return true;  // dropped meanwhile
  const auto check = store_.Verify(*locator, [this](uint64_t bytes) { return Pace(bytes); });
  if (absl::IsCancelled(check.status())) return false;
  if (!check.ok()) return true;
  counters_.checked_bytes.fetch_add(check->bytes_checked, std::memory_order_relaxed);
  switch (check->health) {
    case ChunkCheck::Health::kWhole:
      unreadable_.erase(id);
      break;
    case ChunkCheck::Health::kHealed:
      Log().warn("{}: chunk {}: {}", options_.name, id.ToHex(), check->why);
      break;
    case ChunkCheck::Health::kDamaged:
      Log().error("{}: chunk {} is damaged and was taken out: {}", options_.name, id.ToHex(),
                  check->why);
      break;
    case ChunkCheck::Health::kUnreadable:
      counters_.unreadable_count.fetch_add(1, std::memory_order_relaxed);
      if (unreadable_.size() < kUnreadableCountMax && unreadable_.insert(id).second)
        Log().error("{}: chunk {} cannot be checked: {}", options_.name, id.ToHex(), check->why);
      break;
  }
  return true;
}

// If a step takes longer than its share on a busy device, the scrubber does not catch up.
bool Scrubber::Pace(uint64_t bytes) {
  if (!AwaitUntil(next_)) return false;
  const double seconds =
      static_cast<double>(bytes) / static_cast<double>(options_.bytes_per_second);
  next_ = std::max(next_, options_.clock->Now()) + Duration(static_cast<int64_t>(seconds * 1e9));
  return true;
}

bool Scrubber::AwaitUntil(Instant until) {
  absl::MutexLock lock(&mu_);
  return !options_.clock->Await(mu_, absl::Condition(&stop_), until);
}

}  // namespace ckv
