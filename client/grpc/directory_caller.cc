// A call to several directories is a loop of tries (Search). Note decides whether an answer ends
// the call (Verdict), whether the try may have changed something, and where later calls begin. The
// lock covers only that, never a try.

#include "client/grpc/directory_caller.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "proto/base/host_port.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// A try that waited in vain for less than this proves nothing: the call had little time left.
constexpr Duration kSilenceMin = std::chrono::milliseconds(100);

std::optional<std::string> ToldBeside(const grpc::ClientContext& context, const char* key) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find(key);
  if (found == metadata.end()) return std::nullopt;
  return std::string(found->second.data(), found->second.size());
}

template <typename Number>
std::optional<Number> NumberBeside(const grpc::ClientContext& context, const char* key) {
  const std::optional<std::string> text = ToldBeside(context, key);
  Number number = 0;
  if (!text || !absl::SimpleAtoi(*text, &number)) return std::nullopt;
  return number;
}

// Whether a server that stops, or none, may have made this status. FromPeer makes the first ones
// Unavailable.
bool MayBeNoAnswer(const grpc::Status& status) {
  return FromPeer(status, "").code() == absl::StatusCode::kUnavailable ||
         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
}

}  // namespace

struct DirectoryCaller::Peer {
  explicit Peer(std::string address_in) : address(std::move(address_in)) {}

  const std::string address;
  // Set by Connect, then constant.
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<Stub> stub;
  // Guarded by the caller's lock.
  bool led = false;      // whether it led when it answered last
  Instant silent_until;  // calls avoid it until then
};

struct DirectoryCaller::Answer {
  enum class Verdict { kEndsCall, kTryNext };

  explicit Answer(grpc::Status status_in) : status(std::move(status_in)) {}

  bool IsFromLeader() const { return leader == kLeadsItself; }

  grpc::Status status;
  std::optional<std::string> leader;  // as the directory reported it (kLeaderKey)
  Duration waited{0};
  Duration limit{0};
  // Set by Note.
  PeerPtr named;  // another directory that leads, or null
  Verdict verdict = Verdict::kTryNext;
  bool may_have_effect = false;
};

DirectoryCaller::DirectoryCaller(std::string_view addresses, Clock* clock,
                                 const DirectoryCallerOptions& options)
    : addresses_(addresses), clock_(*clock), options_(options) {
  if (addresses.find(',') != std::string_view::npos) {
    const auto parsed = ParsePeerAddresses(addresses, kDirectoryCountMax);
    if (parsed.ok()) {
      for (const HostPort& address : *parsed)
        given_.push_back(std::make_shared<Peer>(address.ToString()));
    } else {
      malformed_ = absl::InvalidArgumentError(
          absl::StrFormat("directories: %s", std::string(parsed.status().message())));
    }
  }
  if (given_.empty()) given_.push_back(std::make_shared<Peer>(addresses_));
  absl::MutexLock lock(&mu_);
  current_ = given_.front();
}

DirectoryCaller::~DirectoryCaller() = default;

absl::Status DirectoryCaller::Run(std::string_view name, OneTry one_try, Instant deadline,
                                  CallEnd* end) {
  CallEnd unused;
  if (end == nullptr) end = &unused;
  *end = CallEnd();
  CKV_RETURN_IF_ERROR(malformed_);
  const bool alone = given_.size() == 1;
  if (alone) {
    Try(given_.front(), one_try, deadline, end);
  } else {
    Search(one_try, std::min(deadline, clock_.Now() + options_.timeout_max), end);
  }
  const std::string context = absl::StrFormat("directory %s: %s", end->address, name);
  return alone ? options_.convert(end->status, context) : FromPeer(end->status, context);
}

DirectoryCaller::Answer DirectoryCaller::Try(const PeerPtr& peer, OneTry one_try, Instant until,
                                             CallEnd* end) {
  {
    absl::MutexLock lock(&mu_);
    Connect(*peer);
  }
  HurryChannel(*peer->channel);
  grpc::ClientContext context;
  const Instant begin = clock_.Now();
  SetDeadline(context, clock_, until, options_.timeout_max);
  Answer answer(one_try(*peer->stub, &context));
  answer.leader = ToldBeside(context, kLeaderKey);
  answer.waited = clock_.Now() - begin;
  answer.limit = until - begin;
  end->status = answer.status;
  end->address = peer->address;
  end->lease_end_ms = NumberBeside<uint32_t>(context, kLeaseEndKey);
  end->directory_incarnation = NumberBeside<uint64_t>(context, kDirectoryIncarnationKey);
  if (given_.size() == 1) return answer;
  absl::MutexLock lock(&mu_);
  Note(peer, answer);
  return answer;
}

void DirectoryCaller::Search(OneTry one_try, Instant deadline, CallEnd* end) {
  Duration limit = std::min(kTryTimeout, (deadline - clock_.Now()) / 2);
  bool reached_limit = false;
  std::vector<PeerPtr> tried;  // in this round
  std::vector<PeerPtr> tried_ever;
  PeerPtr peer = Next(tried, nullptr, given_.back());
  while (true) {
    const Instant begin = clock_.Now();
    const Answer answer =
        Try(peer, one_try, std::min(deadline, begin + std::max(limit, Duration(0))), end);
    if (answer.verdict == Answer::Verdict::kEndsCall) return;
    tried.push_back(peer);
    if (answer.status.ok()) {
      const Instant until = std::min(deadline, clock_.Now() + limit);
      return AskLeader(answer.named, one_try, until, tried, end);
    }
    if (std::find(tried_ever.begin(), tried_ever.end(), peer) == tried_ever.end())
      tried_ever.push_back(peer);
    reached_limit |= answer.status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    if (clock_.Now() >= deadline) break;
    PeerPtr next = Next(tried, answer.named, peer);
    if (next == nullptr) {
      clock_.WaitUntil(std::min(deadline, clock_.Now() + kRoundPause));
      if (clock_.Now() >= deadline) break;
      if (reached_limit) limit = std::min(limit * 2, options_.timeout_max);
      reached_limit = false;
      tried.clear();
      next = Next(tried, nullptr, peer);
    }
    end->was_repeated |= answer.may_have_effect;
    peer = std::move(next);
  }
  const absl::StatusCode code = FromPeer(end->status, "").code();
  end->status = grpc::Status(static_cast<grpc::StatusCode>(code),
                             absl::StrFormat("%s; %d directories were tried",
                                             end->status.error_message(), tried_ever.size()));
}

void DirectoryCaller::AskLeader(const PeerPtr& leader, OneTry one_try, Instant until,
                                const std::vector<PeerPtr>& tried, CallEnd* end) {
  if (Next(tried, leader, leader) != leader) return;
  const CallEnd of_follower = *end;
  // A try without an answer leaves the follower's reply as it is.
  const Answer answer = Try(leader, one_try, until, end);
  if (answer.verdict != Answer::Verdict::kEndsCall) *end = of_follower;
}

DirectoryCaller::PeerPtr DirectoryCaller::Next(const std::vector<PeerPtr>& tried,
                                               const PeerPtr& named, const PeerPtr& last) {
  absl::MutexLock lock(&mu_);
  const Instant now = clock_.Now();
  const auto may_be_tried = [&](const PeerPtr& peer) {
    return peer != nullptr && peer->silent_until <= now &&
           std::find(tried.begin(), tried.end(), peer) == tried.end();
  };
  if (may_be_tried(named)) return named;
  if (may_be_tried(current_)) return current_;
  PeerPtr peer = last;
  for (size_t i = 0; i < given_.size(); ++i) {
    peer = After(peer);
    if (may_be_tried(peer)) return peer;
  }
  if (!tried.empty()) return nullptr;
  // All of them are silent: the one that is so for the longest time may be back.
  return *std::min_element(given_.begin(), given_.end(), [](const PeerPtr& a, const PeerPtr& b) {
    return a->silent_until < b->silent_until;
  });
}

void DirectoryCaller::Note(const PeerPtr& peer, Answer& answer) {
  const bool led_before = std::exchange(peer->led, answer.IsFromLeader());
  if (answer.leader && !answer.IsFromLeader()) answer.named = Named(*answer.leader);
  if (answer.named == peer) answer.named = nullptr;
  const Instant now = clock_.Now();
  const bool no_answer = MayBeNoAnswer(answer.status);
  const bool silent = no_answer && !answer.leader && answer.waited >= kSilenceMin &&
                      answer.waited >= answer.limit / 2;
  peer->silent_until = silent ? now + kSilencePause : Instant();
  if (no_answer) {
    // A follower refuses what it cannot do. One that led a moment ago may have done it.
    const bool refused = answer.leader && !answer.IsFromLeader() && !led_before &&
                         answer.status.error_code() == grpc::StatusCode::UNAVAILABLE;
    answer.may_have_effect = !refused && !NeverConnected(answer.status);
  } else if (answer.named == nullptr) {
    answer.verdict = Answer::Verdict::kEndsCall;
  }
  if (answer.named != nullptr && answer.named->silent_until <= now) {
    current_ = answer.named;
  } else if (!no_answer) {
    current_ = peer;
  }
}

DirectoryCaller::PeerPtr DirectoryCaller::Named(std::string_view address) {
  const absl::StatusOr<HostPort> parsed = HostPort::Parse(address, /*port_min=*/1);
  if (!parsed.ok()) return nullptr;
  const std::string text = parsed->ToString();
  if (PeerPtr known = Find(text); known != nullptr) return known;
  named_.push_front(std::make_shared<Peer>(text));
  if (named_.size() > kNamedLeaderCountMax) named_.pop_back();
  return named_.front();
}

DirectoryCaller::PeerPtr DirectoryCaller::Find(std::string_view address) const {
  for (const PeerPtr& peer : given_) {
    if (peer->address == address) return peer;
  }
  for (const PeerPtr& peer : named_) {
    if (peer->address == address) return peer;
  }
  return nullptr;
}

DirectoryCaller::PeerPtr DirectoryCaller::After(const PeerPtr& peer) const {
  const auto found = std::find(given_.begin(), given_.end(), peer);
  if (found == given_.end() || found + 1 == given_.end()) return given_.front();
  return *(found + 1);
}

void DirectoryCaller::Connect(Peer& peer) {
  if (peer.stub != nullptr) return;
  peer.channel = MakeChannel(peer.address, options_.message_bytes_max);
  peer.stub = v1::DirectoryService::NewStub(peer.channel);
}

DirectoryCaller::Place DirectoryCaller::BeginStream() {
  const PeerPtr peer = Next({}, nullptr, given_.back());
  {
    absl::MutexLock lock(&mu_);
    Connect(*peer);
  }
  HurryChannel(*peer->channel);
  return {peer->address, std::shared_ptr<Stub>(peer, peer->stub.get())};
}

absl::Status DirectoryCaller::EndStream(const Place& place, std::string_view name,
                                        const grpc::Status& status,
                                        const grpc::ClientContext& context) {
  const std::string where = absl::StrFormat("directory %s: %s", place.address, name);
  if (given_.size() == 1) return options_.convert(status, where);
  Answer answer(status);
  answer.leader = ToldBeside(context, kLeaderKey);
  absl::MutexLock lock(&mu_);
  if (const PeerPtr peer = Find(place.address); peer != nullptr) {
    Note(peer, answer);
    // A directory that ends streams without an error, or as unavailable, is about to end itself.
    const bool stays = answer.IsFromLeader() && !status.ok() && !MayBeNoAnswer(status);
    if (!stays && current_ == peer) current_ = After(peer);
  }
  return FromPeer(status, where);
}

}  // namespace ckv
