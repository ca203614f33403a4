// The handshake between the two ends of a lane: offers, answers, invitations, and the frames that
// open a connection.
//
//   requester                                holder
//   Dial: offer    ---- control plane --->   Invite(offer): stores {id, token}
//   Connect(answer) <--- control plane ---   answer: fabric, {id, token}, where to connect
//   connects, sends HelloFrame{id, token} -> Acceptor: takes the invitation, once
//   checks the WelcomeFrame <--------------  WelcomeFrame{shape} (shm: with the memory)
//
// The token is 16 random bytes, which the holder sends only over the authenticated session. So a
// stranger who reaches the socket gains nothing, and one answer opens one lane.

#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "transport/fabric.h"
#include "transport/socket.h"

namespace ckv {

using Token = std::array<uint8_t, 16>;

// The id of an invitation, and the secret token that proves the right to take it.
struct InvitationKey {
  uint64_t id = 0;
  Token token{};
};
InvitationKey RandomInvitationKey();

// Compares every byte, even after the first difference, so that the duration reveals nothing.
bool SameToken(const Token& a, const Token& b) noexcept;

inline constexpr uint32_t kHelloMagic = 0x48564b43;    // "CKVH"
inline constexpr uint32_t kWelcomeMagic = 0x57564b43;  // "CKVW"
inline constexpr uint16_t kHandshakeVersion = 1;

struct HelloFrame {
  uint32_t magic = kHelloMagic;
  uint16_t version = kHandshakeVersion;
  uint16_t reserved = 0;
  uint64_t invitation = 0;
  Token token{};
};
static_assert(sizeof(HelloFrame) == 32 && std::is_trivially_copyable_v<HelloFrame>);

struct WelcomeFrame {
  uint32_t magic = kWelcomeMagic;
  uint16_t version = kHandshakeVersion;
  uint16_t reserved = 0;
  uint32_t slot_count = 0;
  uint32_t request_bytes_max = 0;
  uint32_t reply_bytes_max = 0;
  uint32_t reserved2 = 0;
};
static_assert(sizeof(WelcomeFrame) == 24 && std::is_trivially_copyable_v<WelcomeFrame>);

WelcomeFrame MakeWelcome(const LaneShape& shape);
// Checks a peer's welcome against the requested lane.
//   InvalidArgument     not a welcome of this version, or for a lane of another shape.
absl::Status CheckWelcome(const WelcomeFrame& frame, const LaneShape& shape);

// Encodes the opaque bytes that Dialer::offer returns. `text` is the host's identity for shm, a
// VerbsEndFrame for verbs, and empty for the others.
std::string EncodeOffer(FabricKind kind, std::string_view text);
// Returns the text of an offer.
//   InvalidArgument     malformed, or of another fabric.
absl::StatusOr<std::string> DecodeOffer(FabricKind kind, std::string_view offer);

struct Answer {
  InvitationKey key;
  // The address to connect to, empty for loopback; for verbs a VerbsEndFrame.
  std::string address;
};
std::string EncodeAnswer(FabricKind kind, const Answer& answer);
// Decodes the opaque bytes that Invite returned.
//   InvalidArgument     malformed, or of another fabric.
absl::StatusOr<Answer> DecodeAnswer(FabricKind kind, std::string_view answer);

// The invitations of a listener: each holds a payload until it is taken or expires. Thread-safe.
template <typename Payload>
class InvitationTable {
 public:
  // Adds an invitation and returns its key.
  //   ResourceExhausted   kInvitationCountMax invitations are outstanding.
  absl::StatusOr<InvitationKey> Add(Payload payload, Instant now, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_) {
    Expire(now);
    const InvitationKey key = RandomInvitationKey();
    absl::MutexLock lock(&mu_);
    if (entries_.size() >= kInvitationCountMax) {
      return absl::ResourceExhaustedError("too many lanes are being opened; retry later");
    }
    entries_.insert_or_assign(key.id, Entry{key.token, deadline, std::move(payload)});
    return key;
  }

  // Returns the payload and removes the invitation, if the token is right. A wrong token leaves the
  // invitation in place; otherwise a stranger could revoke it.
  std::optional<Payload> Take(const InvitationKey& key, Instant now) ABSL_LOCKS_EXCLUDED(mu_) {
    Expire(now);
    absl::MutexLock lock(&mu_);
    const auto it = entries_.find(key.id);
    if (it == entries_.end() || !SameToken(it->second.token, key.token)) return std::nullopt;
    std::optional<Payload> payload(std::move(it->second.payload));
    entries_.erase(it);
    return payload;
  }

  // Drops every invitation whose deadline has passed.
  void Expire(Instant now) ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<Payload> dead;  // destroyed outside the lock, because unmapping is slow
    absl::MutexLock lock(&mu_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      const auto next = std::next(it);
      if (it->second.deadline <= now) {
        dead.push_back(std::move(it->second.payload));
        entries_.erase(it);
      }
      it = next;
    }
  }

 private:
  struct Entry {
    Token token;
    Instant deadline;
    Payload payload;
  };

  absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
