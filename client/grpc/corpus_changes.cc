#include "client/grpc/corpus_changes.h"

#include "absl/status/statusor.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "proto/corpus.h"

namespace ckv {
namespace {

// The corpus without its policy, and without what the directory adds to it.
Corpus AsPublished(Corpus corpus) {
  corpus.version = 0;
  corpus.policy = {};
  for (ChunkPlacement& chunk : corpus.chunks) chunk.set_leased({});
  return corpus;
}

// Reads the tenant's own corpus.
//   NotFound            there is none, though there may be a shared one of that name.
absl::StatusOr<v1::Corpus> ReadOwn(DirectoryCaller& directory, const std::string& name,
                                   const std::string& tenant, Instant deadline) {
  v1::GetCorpusRequest request;
  request.set_name(name);
  request.set_tenant(tenant);
  v1::GetCorpusReply reply;
  CKV_RETURN_IF_ERROR(
      directory.Call(&DirectoryCaller::Stub::GetCorpus, "GetCorpus", request, &reply, deadline));
  if (reply.corpus().tenant() != tenant) return absl::NotFoundError("the shared tenant has it");
  return std::move(*reply.mutable_corpus());
}

}  // namespace

bool HasPolicy(const CorpusPolicy& there, const CorpusPolicy& wanted) {
  const auto has = [](const auto& is, const auto& want) {
    return !want.has_value() || is.value_or(0) == *want;
  };
  return has(there.ttl_ms, wanted.ttl_ms) && has(there.quota_bytes, wanted.quota_bytes) &&
         has(there.kept_version_count, wanted.kept_version_count);
}

absl::Status PublishCorpus(DirectoryCaller& directory, const v1::PublishCorpusRequest& request,
                           v1::PublishCorpusReply* reply, Instant deadline, CallEnd* end,
                           bool* answer_was_lost) {
  CallEnd unused;
  if (end == nullptr) end = &unused;
  if (answer_was_lost != nullptr) *answer_was_lost = false;
  absl::Status status = directory.Call(&DirectoryCaller::Stub::PublishCorpus, "PublishCorpus",
                                       request, reply, deadline, end);
  const bool refused = absl::IsAlreadyExists(status) || absl::IsFailedPrecondition(status);
  if (!refused || !end->was_repeated) return status;
  const absl::StatusOr<v1::Corpus> there =
      ReadOwn(directory, request.corpus().name(), request.corpus().tenant(), deadline);
  if (!there.ok()) return status;
  const absl::StatusOr<Corpus> found = FromProto(*there);
  const absl::StatusOr<Corpus> wanted = FromProto(request.corpus());
  if (!found.ok() || !wanted.ok() || AsPublished(*found) != AsPublished(*wanted)) return status;
  if (!HasPolicy(found->policy, wanted->policy)) return status;
  reply->Clear();
  reply->set_version(found->version);
  if (answer_was_lost != nullptr) *answer_was_lost = true;
  return absl::OkStatus();
}

absl::Status DropCorpus(DirectoryCaller& directory, const v1::DropCorpusRequest& request,
                        v1::DropCorpusReply* reply, Instant deadline, CallEnd* end,
                        bool* answer_was_lost) {
  CallEnd unused;
  if (end == nullptr) end = &unused;
  if (answer_was_lost != nullptr) *answer_was_lost = false;
  absl::Status status = directory.Call(&DirectoryCaller::Stub::DropCorpus, "DropCorpus", request,
                                       reply, deadline, end);
  if (!absl::IsNotFound(status) || !end->was_repeated) return status;
  const auto there = ReadOwn(directory, request.name(), request.tenant(), deadline);
  if (!absl::IsNotFound(there.status())) return status;
  reply->Clear();
  if (answer_was_lost != nullptr) *answer_was_lost = true;
  return absl::OkStatus();
}

}  // namespace ckv
