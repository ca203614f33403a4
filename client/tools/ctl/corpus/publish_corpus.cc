#include "client/tools/ctl/corpus/publish_corpus.h"

#include "client/grpc/corpus_changes.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv::ctl {

absl::StatusOr<v1::PublishCorpusReply> PublishCorpus(Fleet& fleet, const Corpus& corpus,
                                                     bool replace, uint64_t expected_version) {
  CKV_ASSIGN_OR_RETURN(DirectoryCaller* const directory, fleet.directory());
  v1::PublishCorpusRequest request;
  *request.mutable_corpus() = ToProto(corpus);
  request.set_replace(replace);
  request.set_expected_version(expected_version);
  v1::PublishCorpusReply reply;
  CallEnd end;
  const absl::Status status =
      ckv::PublishCorpus(*directory, request, &reply, fleet.DirectoryDeadline(), &end);
  CKV_RETURN_IF_ERROR(fleet.DirectoryError(status, end, "PublishCorpus"));
  return reply;
}

}  // namespace ckv::ctl
