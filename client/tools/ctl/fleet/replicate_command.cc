// ckvctl chunk replicate and release: copies that another process makes, and answers for.

#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/chunk_range.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/time_span.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

struct ReplicateOptions {
  std::string corpus;
  std::string chunks;
  std::string at;
  uint32_t timeout_ms = 60'000;
};

FleetOptions FleetAt(const Ctl& ctl, const ReplicateOptions& options) {
  FleetOptions fleet = ctl.fleet;
  fleet.requester = options.at;
  fleet.requester_option = "--at";
  return fleet;
}

// Fills in what both requests have.
template <typename Request>
absl::Status Fill(const Ctl& ctl, const ReplicateOptions& options, const Corpus& corpus,
                  Request& request) {
  CKV_ASSIGN_OR_RETURN(
      const std::vector<uint32_t> ordinals,
      ParseChunkRanges(options.chunks, static_cast<uint32_t>(corpus.chunks.size())));
  request.set_corpus(options.corpus);
  request.set_tenant(ctl.fleet.tenant);
  SetChunks(ordinals, request);
  request.set_timeout_ms(options.timeout_ms);
  return absl::OkStatus();
}

absl::Status RunReplicate(const Ctl& ctl, const ReplicateOptions& options) {
  Fleet fleet(FleetAt(ctl, options), ctl.clock);
  CKV_ASSIGN_OR_RETURN(const Corpus corpus, fleet.GetCorpus(options.corpus));
  v1::ReplicateRequest request;
  CKV_RETURN_IF_ERROR(Fill(ctl, options, corpus, request));
  request.set_corpus_version(corpus.version);
  grpc::ClientContext context;
  fleet.PrepareBeyond(context, options.timeout_ms);
  v1::ReplicateReply reply;
  CKV_RETURN_IF_ERROR(
      fleet.RequesterError(fleet.requester().Replicate(&context, request, &reply), "Replicate"));
  if (reply.refused_count() > 0) {
    ctl.Note(absl::StrFormat(
        "ckvctl: warning: %s not kept: the directory lists at most %d members for a chunk, and a "
        "limited number of copies in all",
        FormatCount(reply.refused_count(), "chunk"), kReplicaCountMax));
  }
  ctl.Print(absl::StrFormat("%s copied (%s), %d were there; %s made room\n",
                            FormatCount(reply.fetched_count(), "chunk"),
                            FormatBytes(reply.fetched_bytes()), reply.present_count(),
                            FormatCount(reply.evicted_count(), "earlier replica")),
            {{"corpus", options.corpus},
             {"at", options.at},
             {"fetched_count", reply.fetched_count()},
             {"present_count", reply.present_count()},
             {"refused_count", reply.refused_count()},
             {"evicted_count", reply.evicted_count()},
             {"fetched_bytes", reply.fetched_bytes()}});
  return absl::OkStatus();
}

absl::Status RunRelease(const Ctl& ctl, const ReplicateOptions& options) {
  Fleet fleet(FleetAt(ctl, options), ctl.clock);
  CKV_ASSIGN_OR_RETURN(const Corpus corpus, fleet.GetCorpus(options.corpus));
  v1::ReleaseReplicasRequest request;
  CKV_RETURN_IF_ERROR(Fill(ctl, options, corpus, request));
  grpc::ClientContext context;
  fleet.PrepareBeyond(context, options.timeout_ms);
  v1::ReleaseReplicasReply reply;
  CKV_RETURN_IF_ERROR(fleet.RequesterError(
      fleet.requester().ReleaseReplicas(&context, request, &reply), "ReleaseReplicas"));
  ctl.Print(
      absl::StrFormat("%s released\n", FormatCount(reply.released_count(), "chunk")),
      {{"corpus", options.corpus}, {"at", options.at}, {"released_count", reply.released_count()}});
  return absl::OkStatus();
}

void AddOptions(CLI::App& verb, ReplicateOptions& options) {
  verb.add_option("CORPUS", options.corpus, "The corpus")->required();
  verb.add_option("--at", options.at, "Address of the process: a ckvd of --role=holder,requester")
      ->required()
      ->check(HostPort())
      ->type_name("HOST:PORT");
  verb.add_option("--chunks", options.chunks, kChunksHelp)->check(NotEmpty())->type_name("LIST");
  AddTimeout(verb, "--timeout", options.timeout_ms, "Limit of the whole call");
}

}  // namespace

void AddReplicateCommands(CLI::App& chunk, Ctl& ctl) {
  const auto options = std::make_shared<ReplicateOptions>();
  CLI::App* replicate = AddVerb(
      chunk, "replicate", "Copy chunks to a process that answers for them, too",
      "  ckvctl chunk replicate docs --chunks 0-3,9 --at 10.0.0.7:7311\n\n"
      "The copies last as long as that process' lease, or until they are released, or make\n"
      "room for others. ckvctl corpus show lists them with a '+' before the name.");
  AddOptions(*replicate, *options);
  replicate->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunReplicate(ctl, *options); }; });
  CLI::App* release =
      AddVerb(chunk, "release", "Drop the copies that chunk replicate made at a process",
              "  ckvctl chunk release docs --chunks 0-3 --at 10.0.0.7:7311");
  AddOptions(*release, *options);
  release->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunRelease(ctl, *options); }; });
}

}  // namespace ckv::ctl
