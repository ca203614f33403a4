#include "server/directory/local_directory.h"

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {

absl::StatusOr<Corpus> LocalDirectory::GetCorpus(std::string_view name, std::string_view tenant,
                                                 Instant /*deadline*/) {
  CKV_ASSIGN_OR_RETURN(const std::shared_ptr<const Corpus> corpus,
                       state_->Get(name, tenant, for_calls_));
  return *corpus;
}

absl::StatusOr<std::vector<Member>> LocalDirectory::ListMembers(Instant /*deadline*/) {
  return state_->Members();
}

absl::StatusOr<std::vector<Corpus>> LocalDirectory::LocateChunk(const ChunkId& id,
                                                                std::string_view tenant,
                                                                Instant /*deadline*/) {
  std::vector<Corpus> corpora;
  for (const LocatedChunk& place : state_->Locate(id, tenant, for_calls_)) {
    const Corpus& whole = *place.corpus;
    corpora.push_back({.name = whole.name,
                       .tenant = whole.tenant,
                       .geometry = whole.geometry,
                       .chunks = {place.chunk},
                       .version = whole.version});
  }
  if (!corpora.empty()) return corpora;
  return absl::NotFoundError(absl::StrFormat("no corpus has chunk %s", id.ToHex()));
}

absl::StatusOr<TenantKey> LocalDirectory::TenantKeyOf(std::string_view tenant, Instant deadline) {
  return state_->TenantKeyOf(tenant, /*make=*/false, deadline);
}

absl::StatusOr<PromptChunks> LocalDirectory::FindPrompt(std::span<const uint64_t> heads,
                                                        const std::optional<ChunkId>& model,
                                                        std::string_view tenant,
                                                        Instant /*deadline*/) {
  return state_->FindPrompt(heads, model, tenant);
}

}  // namespace ckv
