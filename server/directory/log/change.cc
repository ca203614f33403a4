// Encodes and decodes the records of change.h. Each kind's body is written and read by one branch
// of a switch, in the order of the table in change.h. Reading checks the kind, the version of the
// body and its length first, then the body, and at last that no byte of it is left.

#include "server/directory/log/change.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "store/corpus/corpus_bytes.h"

namespace ckv {
namespace {

constexpr uint8_t kBodyVersion = 1;
constexpr uint8_t kHasTokenHash = 1, kNoTokenHash = 255;

void PutTokenHashes(const Corpus& corpus, std::string& to) {
  for (const ChunkPlacement& chunk : corpus.chunks) {
    PutBytes(chunk.token_hash().head != 0 ? kHasTokenHash : kNoTokenHash, to);
    if (chunk.token_hash().head == 0) continue;
    PutBytes(chunk.token_hash().head, to);
    PutBytes(chunk.token_hash().whole, to);
  }
}

absl::Status Bad(absl::string_view what) { return absl::DataLossError(what); }

absl::Status TakeTokenHashes(ByteReader& body, Corpus& corpus) {
  for (ChunkPlacement& chunk : corpus.chunks) {
    const auto has = body.Take<uint8_t>();
    if (has == kNoTokenHash) continue;
    if (has != kHasTokenHash) return Bad("a chunk with an unknown print");
    TokenHash hash;
    hash.head = body.Take<uint64_t>();
    hash.whole = body.Take<uint64_t>();
    chunk.set_token_hash(hash);
    if (hash.head == 0) return Bad("a print of nothing");
  }
  return absl::OkStatus();
}

void PutMember(const DirectoryChange& change, std::string& to) {
  const Member& member = change.member;
  PutBytes(static_cast<uint8_t>(member.role), to);
  PutBytes(static_cast<uint8_t>(member.kernel_target), to);
  PutBytes(member.epoch.value, to);
  PutBytes(static_cast<uint32_t>(change.lease_ttl / std::chrono::milliseconds(1)), to);
  PutText<uint8_t>(member.id.name, to);
  PutText<uint16_t>(member.control_address, to);
  PutText<uint8_t>(member.domain.host, to);
  PutText<uint8_t>(member.domain.rack, to);
  PutText<uint8_t>(member.domain.zone, to);
}

absl::Status TakeMember(ByteReader& body, DirectoryChange& change) {
  Member& member = change.member;
  const auto role = body.Take<uint8_t>();
  if (role != static_cast<uint8_t>(MemberRole::kHolder) &&
      role != static_cast<uint8_t>(MemberRole::kRequester)) {
    return Bad("a member of no role");
  }
  member.role = static_cast<MemberRole>(role);
  // A number that this build does not know equals none of its own.
  member.kernel_target = static_cast<KernelTargetId>(body.Take<uint8_t>());
  member.epoch.value = body.Take<uint64_t>();
  change.lease_ttl = std::chrono::milliseconds(body.Take<uint32_t>());
  member.id.name = std::string(body.TakeText<uint8_t>());
  member.control_address = std::string(body.TakeText<uint16_t>());
  member.domain.host = std::string(body.TakeText<uint8_t>());
  member.domain.rack = std::string(body.TakeText<uint8_t>());
  member.domain.zone = std::string(body.TakeText<uint8_t>());
  if (member.id.name.empty() || member.control_address.empty()) return Bad("a member of no name");
  return absl::OkStatus();
}

absl::Status TakeBody(ByteReader& body, DirectoryChange& change) {
  switch (change.kind) {
    case ChangeKind::kPublish: {
      CKV_ASSIGN_OR_RETURN(Corpus corpus, TakeCorpus(body));
      CKV_RETURN_IF_ERROR(TakeTokenHashes(body, corpus));
      change.corpus = std::make_shared<const Corpus>(std::move(corpus));
      break;
    }
    case ChangeKind::kDrop:
      change.number = body.Take<uint64_t>();
      change.version = body.Take<uint64_t>();
      change.tenant = std::string(body.TakeText<uint8_t>());
      change.name = std::string(body.TakeText<uint8_t>());
      break;
    case ChangeKind::kEpochs:
      change.epoch_max = body.Take<uint64_t>();
      break;
    case ChangeKind::kFounded:
      change.folder_id = body.Take<uint64_t>();
      break;
    case ChangeKind::kContinues:
      change.log_number = body.Take<uint64_t>();
      change.log_bytes = body.Take<uint64_t>();
      break;
    case ChangeKind::kSnapshotBegin:
      change.folder_id = body.Take<uint64_t>();
      change.version = body.Take<uint64_t>();
      change.epoch_max = body.Take<uint64_t>();
      change.corpus_count = body.Take<uint32_t>();
      break;
    case ChangeKind::kSnapshotEnd:
      change.corpus_count = body.Take<uint32_t>();
      break;
    case ChangeKind::kGap:
      change.gap.after = body.Take<uint64_t>();
      change.gap.until = body.Take<uint64_t>();
      break;
    case ChangeKind::kForget:
      change.number = body.Take<uint64_t>();
      change.folder_id = body.Take<uint64_t>();
      change.version = body.Take<uint64_t>();
      change.removed_version = body.Take<uint64_t>();
      change.tenant = std::string(body.TakeText<uint8_t>());
      change.name = std::string(body.TakeText<uint8_t>());
      break;
    case ChangeKind::kTenantKey: {
      change.tenant = std::string(body.TakeText<uint8_t>());
      const auto key = TenantKey::FromBytes(body.TakeBytes(sizeof(TenantKey)));
      if (!key.ok() || key->IsZero() || change.tenant.empty()) return Bad("a key of no tenant");
      change.key = *key;
      break;
    }
    case ChangeKind::kMember:
      CKV_RETURN_IF_ERROR(TakeMember(body, change));
      break;
    case ChangeKind::kMemberGone:
      change.member.epoch.value = body.Take<uint64_t>();
      change.member.id.name = std::string(body.TakeText<uint8_t>());
      if (change.member.id.name.empty()) return Bad("a member of no name");
      break;
    case ChangeKind::kDrain: {
      const auto drains = body.Take<uint8_t>();
      change.drains = drains == 1;
      change.holder = std::string(body.TakeText<uint8_t>());
      if (drains > 1 || change.holder.empty()) return Bad("a drain of no holder");
      break;
    }
  }
  return body.IsDone() ? absl::OkStatus() : Bad("a record of another length than its fields");
}

}  // namespace

void AppendRecord(const DirectoryChange& change, std::string& payload) {
  PutBytes(static_cast<uint8_t>(change.kind), payload);
  PutBytes(kBodyVersion, payload);
  PutBytes(uint16_t{0}, payload);
  const size_t length_at = payload.size();
  PutBytes(uint32_t{0}, payload);
  switch (change.kind) {
    case ChangeKind::kPublish:
      PutCorpus(*change.corpus, payload);
      PutTokenHashes(*change.corpus, payload);
      break;
    case ChangeKind::kDrop:
      PutBytes(change.number, payload);
      PutBytes(change.version, payload);
      PutText<uint8_t>(change.tenant, payload);
      PutText<uint8_t>(change.name, payload);
      break;
    case ChangeKind::kEpochs:
      PutBytes(change.epoch_max, payload);
      break;
    case ChangeKind::kFounded:
      PutBytes(change.folder_id, payload);
      break;
    case ChangeKind::kContinues:
      PutBytes(change.log_number, payload);
      PutBytes(change.log_bytes, payload);
      break;
    case ChangeKind::kSnapshotBegin:
      PutBytes(change.folder_id, payload);
      PutBytes(change.version, payload);
      PutBytes(change.epoch_max, payload);
      PutBytes(change.corpus_count, payload);
      break;
    case ChangeKind::kSnapshotEnd:
      PutBytes(change.corpus_count, payload);
      break;
    case ChangeKind::kGap:
      PutBytes(change.gap.after, payload);
      PutBytes(change.gap.until, payload);
      break;
    case ChangeKind::kForget:
      PutBytes(change.number, payload);
      PutBytes(change.folder_id, payload);
      PutBytes(change.version, payload);
      PutBytes(change.removed_version, payload);
      PutText<uint8_t>(change.tenant, payload);
      PutText<uint8_t>(change.name, payload);
      break;
    case ChangeKind::kTenantKey:
      PutText<uint8_t>(change.tenant, payload);
      payload.append(change.key.AsBytes());
      break;
    case ChangeKind::kMember:
      PutMember(change, payload);
      break;
    case ChangeKind::kMemberGone:
      PutBytes(change.member.epoch.value, payload);
      PutText<uint8_t>(change.member.id.name, payload);
      break;
    case ChangeKind::kDrain:
      PutBytes(static_cast<uint8_t>(change.drains ? 1 : 0), payload);
      PutText<uint8_t>(change.holder, payload);
      break;
  }
  const auto body_bytes = static_cast<uint32_t>(payload.size() - length_at - sizeof(uint32_t));
  std::memcpy(payload.data() + length_at, &body_bytes, sizeof(body_bytes));
}

absl::Status ReadRecords(std::string_view payload,
                         absl::FunctionRef<absl::Status(DirectoryChange)> take) {
  ByteReader records(payload);
  while (records.left() > 0) {
    DirectoryChange change;
    const auto kind = records.Take<uint8_t>();
    const auto version = records.Take<uint8_t>();
    const auto zero = records.Take<uint16_t>();
    ByteReader body(records.TakeText<uint32_t>());
    if (records.IsShort()) return Bad("a record that is longer than its frame");
    if (version > kBodyVersion || kind > static_cast<uint8_t>(ChangeKind::kDrain)) {
      return absl::FailedPreconditionError(
          absl::StrFormat("a record of kind %d, version %d: it was written by a later version of "
                          "ckv: upgrade this one",
                          kind, version));
    }
    if (version == 0 || kind == 0 || zero != 0)
      return Bad(absl::StrFormat("a record of kind %d, version %d", kind, version));
    change.kind = static_cast<ChangeKind>(kind);
    CKV_RETURN_IF_ERROR(TakeBody(body, change));
    CKV_RETURN_IF_ERROR(take(std::move(change)));
  }
  return absl::OkStatus();
}

}  // namespace ckv
