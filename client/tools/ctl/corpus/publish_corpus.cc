#include "client/tools/ctl/corpus/publish_corpus.h"

#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv::ctl {

absl::StatusOr<v1::PublishCorpusReply> PublishCorpus(Fleet& fleet, const Corpus& corpus,
                                                     bool replace) {
  CKV_ASSIGN_OR_RETURN(v1::DirectoryService::StubInterface * directory, fleet.directory());
  grpc::ClientContext context;
  fleet.Prepare(context);
  v1::PublishCorpusRequest request;
  *request.mutable_corpus() = ToProto(corpus);
  request.set_replace(replace);
  v1::PublishCorpusReply reply;
  CKV_RETURN_IF_ERROR(
      fleet.DirectoryError(directory->PublishCorpus(&context, request, &reply), "PublishCorpus"));
  return reply;
}

}  // namespace ckv::ctl
