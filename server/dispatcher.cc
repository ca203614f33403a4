#include "server/dispatcher.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/pause_cpu.h"
#include "proto/status.h"
#include "spdlog/spdlog.h"

namespace ckv {
namespace {

// While busy, how often the listeners are asked: a new lane waits that long at most, and the calls
// (2 us for tcp) stay below 2 % of the thread.
constexpr Duration kAcceptInterval = std::chrono::microseconds(200);

// A lane without an event (loopback) is polled at this interval when idle: 1 % of a core.
constexpr int kPollOnlySleepMs = 1;

constexpr int kEpollEventMax = 16;  // only whether anything happened matters

bool Watch(int epoll_fd, int fd) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

// One lane and what has arrived on it: at most one request a slot, in a ring.
struct Dispatcher::LaneState {
  std::unique_ptr<ServeLane> lane;
  Session* session = nullptr;
  std::vector<ReadyRequest> ring;  // [slot_count]
  uint32_t head = 0;
  uint32_t count = 0;
  bool broken = false;
  bool armed = false;

  void Push(const ReadyRequest& ready) { ring[(head + count++) % ring.size()] = ready; }
  const ReadyRequest& front() const { return ring[head]; }
  void Pop() {
    head = (head + 1) % static_cast<uint32_t>(ring.size());
    --count;
  }
};

struct Dispatcher::SessionLanes {
  Session* session = nullptr;
  std::vector<std::unique_ptr<LaneState>> lanes;
  size_t next_lane = 0;
};

absl::StatusOr<std::unique_ptr<Dispatcher>> Dispatcher::Start(const DispatcherOptions& options,
                                                              ChunkTable* table,
                                                              SessionTable* sessions,
                                                              const LeaseGate* lease,
                                                              std::vector<Listener*> listeners) {
  std::unique_ptr<Dispatcher> dispatcher(
      new Dispatcher(options, table, sessions, lease, std::move(listeners)));
  CKV_RETURN_IF_ERROR(dispatcher->OpenEvents());
  dispatcher->thread_ = std::thread([d = dispatcher.get()] { d->Run(); });
  return dispatcher;
}

Dispatcher::Dispatcher(const DispatcherOptions& options, ChunkTable* table, SessionTable* sessions,
                       const LeaseGate* lease, std::vector<Listener*> listeners)
    : options_(options),
      sessions_(sessions),
      listeners_(std::move(listeners)),
      batch_(options.batch_request_count_max, options.compute_threads, options.clock, table, lease,
             &counters_),
      wait_(options.spin_max) {}

absl::Status Dispatcher::OpenEvents() {
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  bool watched = epoll_fd_ >= 0 && wake_fd_ >= 0 && Watch(epoll_fd_, wake_fd_);
  for (const Listener* listener : listeners_) {
    watched = watched && (listener->event_fd() < 0 || Watch(epoll_fd_, listener->event_fd()));
  }
  if (watched) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("dispatcher: no event descriptors: %s", std::strerror(errno)));
}

Dispatcher::~Dispatcher() {
  stop_.store(true, std::memory_order_release);
  if (thread_.joinable()) {
    Wake();
    thread_.join();
  }
  if (wake_fd_ >= 0) close(wake_fd_);
  if (epoll_fd_ >= 0) close(epoll_fd_);
}

// The flag first, then the event: a dispatcher that consumed the event sees the flag. The flag may
// be taken before the event comes; Sleep reads the event all the same.
void Dispatcher::Wake() {
  control_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  // Fails only when 2^64 wake-ups are pending, and then it is awake.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

void Dispatcher::Drain(Instant deadline) {
  draining_.store(true, std::memory_order_release);
  Wake();
  absl::MutexLock lock(&drain_mu_);
  options_.clock->Await(drain_mu_, absl::Condition(&drained_), deadline);
}

void Dispatcher::Run() {
  role_.Claim();
  next_accept_ = options_.clock->Now();
  wait_.Begin(next_accept_);
  while (!stop_.load(std::memory_order_acquire)) {
    const bool worked = RunOnce();
    const Instant now = options_.clock->Now();
    if (worked) {
      wait_.Came(polled_);
      wait_.Begin(now);
    } else if (wait_.Spins(now)) {
      PauseCpu();
    } else {
      Sleep(now);
    }
  }
  for (const std::unique_ptr<SessionLanes>& session : lanes_) {
    for (const std::unique_ptr<LaneState>& lane : session->lanes) DropLane(*lane);
  }
  lanes_.clear();
}

bool Dispatcher::RunOnce() {
  const Instant now = options_.clock->Now();
  polled_ = now;
  if (control_.load(std::memory_order_acquire)) HandleControl(now);
  if (now >= next_accept_) AcceptLanes(now);
  if (now >= next_reap_) next_reap_ = sessions_->Reap(now);
  // Read before the lanes are polled: what a poll finds after a drain began may have come before
  // it, so one whole poll still counts as earlier.
  const bool drain_begun = draining();
  const bool arrived = PollLanes(now);
  drain_seen_ = drain_begun;
  if (waiting_count_ != 0) {
    FillBatch();
    if (batch_.size() != 0) batch_.Answer(waiting_count_);
  }
  if (any_broken_) DropBrokenLanes(now);
  if (drain_seen_ && !drain_told_ && waiting_count_ == 0) NoteDrained();
  return arrived || waiting_count_ != 0;
}

void Dispatcher::HandleControl(Instant now) {
  control_.store(false, std::memory_order_release);
  for (const std::unique_ptr<SessionLanes>& session : lanes_) {
    if (!session->session->closed()) continue;
    for (const std::unique_ptr<LaneState>& lane : session->lanes) {
      Break(*lane, absl::CancelledError("session closed"));
    }
  }
  if (any_broken_) DropBrokenLanes(now);
  next_reap_ = sessions_->Reap(now);
}

void Dispatcher::AcceptLanes(Instant now) {
  next_accept_ = now + kAcceptInterval;
  for (Listener* listener : listeners_) {
    while (std::optional<AcceptedLane> accepted = listener->Accept()) {
      AddLane(*std::move(accepted));
    }
  }
}

void Dispatcher::AddLane(AcceptedLane accepted) {
  Session* session = sessions_->Adopt(accepted.tag);
  if (session == nullptr) return;  // closed meanwhile; the lane goes with `accepted`
  const int fd = accepted.lane->event_fd();
  if (fd >= 0 && !Watch(epoll_fd_, fd)) {
    spdlog::error("lane of {} dropped: epoll: {}", session->requester, std::strerror(errno));
    sessions_->LaneGone(*session);
    next_reap_ = options_.clock->Now();
    return;
  }
  auto lane = std::make_unique<LaneState>();
  lane->session = session;
  lane->ring.resize(accepted.lane->shape().slot_count);
  lane->lane = std::move(accepted.lane);
  counters_.lane_count.fetch_add(1, std::memory_order_relaxed);
  for (const std::unique_ptr<SessionLanes>& known : lanes_) {
    if (known->session != session) continue;
    known->lanes.push_back(std::move(lane));
    return;
  }
  auto added = std::make_unique<SessionLanes>();
  added->session = session;
  added->lanes.push_back(std::move(lane));
  lanes_.push_back(std::move(added));
}

bool Dispatcher::PollLanes(Instant now) {
  const uint32_t before = waiting_count_;
  for (const std::unique_ptr<SessionLanes>& session : lanes_) {
    for (const std::unique_ptr<LaneState>& lane : session->lanes) {
      if (!lane->broken) PollLane(*lane, now);
    }
  }
  return waiting_count_ != before;
}

void Dispatcher::PollLane(LaneState& lane, Instant now) {
  std::array<Arrival, kSlotCountMax> arrivals;
  const size_t room = lane.ring.size() - lane.count;
  if (room == 0) return;
  const size_t count = lane.lane->Poll(std::span(arrivals).first(room));
  if (count == 0) {
    if (const absl::Status status = lane.lane->status(); !status.ok()) Break(lane, status);
    return;
  }
  const LaneShape& shape = lane.lane->shape();
  for (size_t i = 0; i < count; ++i) {
    if (arrivals[i].slot >= shape.slot_count || arrivals[i].bytes > shape.request_bytes_max) {
      Break(lane, absl::InvalidArgumentError(absl::StrFormat("slot %d with %d bytes arrived",
                                                             arrivals[i].slot, arrivals[i].bytes)));
      return;
    }
    lane.Push({.lane = lane.lane.get(),
               .session = lane.session,
               .slot = arrivals[i].slot,
               .bytes = arrivals[i].bytes,
               .arrived = now,
               .refused = drain_seen_});
    ++waiting_count_;
  }
}

void Dispatcher::FillBatch() {
  for (bool any = true; any;) {
    any = false;
    for (size_t i = 0; i < lanes_.size(); ++i) {
      const size_t index = (next_session_ + i) % lanes_.size();
      if (AddOneOf(*lanes_[index], any) != Batch::Verdict::kFull) continue;
      next_session_ = index;  // whoever found no room is first in the next batch
      return;
    }
  }
  next_session_ = lanes_.empty() ? 0 : (next_session_ + 1) % lanes_.size();
}

Batch::Verdict Dispatcher::AddOneOf(SessionLanes& session, bool& any) {
  for (size_t i = 0; i < session.lanes.size(); ++i) {
    const size_t index = (session.next_lane + i) % session.lanes.size();
    LaneState& lane = *session.lanes[index];
    if (lane.count == 0) continue;
    const Batch::Verdict verdict = batch_.Add(lane.front());
    if (verdict == Batch::Verdict::kFull) {
      session.next_lane = index;
      return verdict;
    }
    any = true;
    session.next_lane = index + 1;
    if (verdict == Batch::Verdict::kMalformed) {
      Break(lane, batch_.malformed());
    } else {
      lane.Pop();
      --waiting_count_;
    }
    return verdict;
  }
  return Batch::Verdict::kTaken;
}

// The lane object stays until the batch that may be using it has been answered.
void Dispatcher::Break(LaneState& lane, const absl::Status& why) {
  if (lane.broken) return;
  lane.broken = true;
  any_broken_ = true;
  waiting_count_ -= lane.count;
  lane.count = 0;
  const bool peer_is_wrong = absl::IsInvalidArgument(why) || absl::IsFailedPrecondition(why);
  spdlog::log(peer_is_wrong ? spdlog::level::warn : spdlog::level::debug,
              "{} lane of {} closed: {}", FabricName(lane.lane->kind()), lane.session->requester,
              std::string(why.message()));
}

void Dispatcher::DropBrokenLanes(Instant now) {
  any_broken_ = false;
  for (const std::unique_ptr<SessionLanes>& session : lanes_) {
    std::erase_if(session->lanes, [&](const std::unique_ptr<LaneState>& lane) {
      role_.AssertHeld();
      if (!lane->broken) return false;
      DropLane(*lane);
      return true;
    });
  }
  std::erase_if(
      lanes_, [](const std::unique_ptr<SessionLanes>& session) { return session->lanes.empty(); });
  next_session_ = 0;
  next_reap_ = sessions_->Reap(now);
}

void Dispatcher::DropLane(LaneState& lane) {
  const int fd = lane.lane->event_fd();
  if (fd >= 0) epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
  lane.lane.reset();
  sessions_->LaneGone(*lane.session);
  counters_.lane_count.fetch_sub(1, std::memory_order_relaxed);
}

void Dispatcher::NoteDrained() {
  drain_told_ = true;
  absl::MutexLock lock(&drain_mu_);
  drained_ = true;
}

int Dispatcher::SleepMilliseconds(Instant now) const {
  for (const std::unique_ptr<SessionLanes>& session : lanes_) {
    for (const std::unique_ptr<LaneState>& lane : session->lanes) {
      if (lane->lane->event_fd() < 0) return kPollOnlySleepMs;
    }
  }
  for (const Listener* listener : listeners_) {
    if (listener->event_fd() < 0) return kPollOnlySleepMs;
  }
  const Duration until_reap = next_reap_ - now;
  const Duration sleep = std::clamp(until_reap, Duration(0), kSleepMax);
  return static_cast<int>(sleep.count() / 1'000'000 + 1);
}

void Dispatcher::Sleep(Instant now) {
  bool quiet = true;
  for (const std::unique_ptr<SessionLanes>& session : lanes_) {
    for (const std::unique_ptr<LaneState>& lane : session->lanes) {
      if (lane->lane->event_fd() < 0) continue;
      lane->armed = quiet && lane->lane->Arm();
      quiet = quiet && lane->armed;
    }
  }
  // Read after arming: a Wake since then is in the event descriptor.
  if (quiet && !control_.load(std::memory_order_acquire)) {
    std::array<epoll_event, kEpollEventMax> events;
    epoll_wait(epoll_fd_, events.data(), kEpollEventMax, SleepMilliseconds(now));
    // Whatever the flag says: a dispatcher that was awake may have taken the flag before its event
    // came, and an event left behind would end every later wait at once. Nothing is lost, since
    // the flag of an event that is read here has been set.
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(wake_fd_, &count, sizeof(count));
  }
  for (const std::unique_ptr<SessionLanes>& session : lanes_) {
    for (const std::unique_ptr<LaneState>& lane : session->lanes) {
      if (lane->armed) lane->lane->Disarm();
      lane->armed = false;
    }
  }
  next_accept_ = now;  // a listener may have woken us
}

}  // namespace ckv
