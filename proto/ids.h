// The identities that cross a process boundary: chunks, holders, epochs, requests, handles.

#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace ckv {

// SHA-256 over (model fingerprint, parent chunk id or zero, token ids), and over a key if its
// corpus belongs to one tenant; store/memory/chunk_id.h computes it. The id names a chunk's inputs,
// so it is available before prefill. It is not a capability: a peer that has an id still needs
// permission to read the chunk (I6).
struct ChunkId {
  std::array<uint8_t, 32> bytes{};

  // Returns 64 lower-case hex digits.
  std::string ToHex() const;
  // Returns the first 12 digits: for display only, not as an identifier.
  std::string ShortHex() const;
  //   InvalidArgument     not exactly 64 hex digits.
  static absl::StatusOr<ChunkId> FromHex(std::string_view hex);
  //   InvalidArgument     not exactly 32 bytes.
  static absl::StatusOr<ChunkId> FromBytes(std::string_view bytes);
  // Returns the 32 bytes in the form of a protobuf `bytes` field.
  std::string_view AsBytes() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // True for the all-zero id, which names no chunk: it is the parent of a first chunk.
  bool IsZero() const;

  friend bool operator==(const ChunkId&, const ChunkId&) = default;
  friend auto operator<=>(const ChunkId&, const ChunkId&) = default;
  // Hashes the first 8 bytes. The id is a cryptographic hash already, so they are as good as any
  // hash.
  template <typename H>
  friend H AbslHashValue(H h, const ChunkId& id) {
    uint64_t prefix = 0;
    std::memcpy(&prefix, id.bytes.data(), sizeof(prefix));
    return H::combine(std::move(h), prefix);
  }
};

// The secret key from which the ids of a tenant's chunks are made. The directory creates it and
// gives it only to callers of that tenant. The shared tenant has the zero key, which changes no id.
struct TenantKey {
  std::array<uint8_t, 32> bytes{};

  bool IsZero() const { return *this == TenantKey(); }
  //   InvalidArgument     not exactly 32 bytes.
  static absl::StatusOr<TenantKey> FromBytes(std::string_view bytes);
  std::string_view AsBytes() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  friend bool operator==(const TenantKey&, const TenantKey&) = default;
};

// The verification tag of a keyed chunk id: it verifies the id without the key. Store and send it
// only together with the chunk's tokens. Zero means that the id has no key.
struct VerificationTag {
  std::array<uint8_t, 32> bytes{};

  bool IsZero() const { return *this == VerificationTag(); }
  // Returns the zero tag if `bytes` is empty.
  //   InvalidArgument     neither 0 nor 32 bytes.
  static absl::StatusOr<VerificationTag> FromBytes(std::string_view bytes);
  // Returns an empty string for the zero tag.
  std::string_view AsBytes() const {
    return {reinterpret_cast<const char*>(bytes.data()), IsZero() ? 0 : bytes.size()};
  }
  friend bool operator==(const VerificationTag&, const VerificationTag&) = default;
};

// Two token hashes of a chunk, with which prompts are searched (store/memory/token_hash.h). `head`
// is 0 if the hashes are unknown, or if the chunk has too few tokens.
struct TokenHash {
  uint64_t head = 0;   // covers the first kHeadTokens tokens
  uint64_t whole = 0;  // covers all tokens

  friend bool operator==(const TokenHash&, const TokenHash&) = default;
};

// A holder's name, unique in a directory: `ckvd --name`.
struct HolderId {
  std::string name;

  friend bool operator==(const HolderId&, const HolderId&) = default;
  friend auto operator<=>(const HolderId&, const HolderId&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const HolderId& id) {
    return H::combine(std::move(h), id.name);
  }
};

// Identifies one registration of a holder. The directory assigns it and never uses it again. A
// request carries the epoch of its session. A holder whose epoch has changed refuses the request
// before it touches data (I4).
struct Epoch {
  uint64_t value = 0;
  friend auto operator<=>(const Epoch&, const Epoch&) = default;
};

// Unique among the requests of one lane. A reply with any other id than the awaited one is
// discarded (I1).
struct RequestId {
  uint64_t value = 0;
  friend auto operator<=>(const RequestId&, const RequestId&) = default;
};

// A requester's session on one holder. The value is random, so a stale id never matches another
// requester's session.
struct SessionId {
  uint64_t value = 0;
  friend auto operator<=>(const SessionId&, const SessionId&) = default;
};

// The name of a chunk within one session: a data-plane request carries it instead of a 32-byte id.
// It has no meaning outside the session that resolved it.
struct ChunkHandle {
  uint32_t value = 0;
  friend auto operator<=>(const ChunkHandle&, const ChunkHandle&) = default;
};

}  // namespace ckv
