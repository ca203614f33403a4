// The stubs of gRPC services without their calls: each says that it is not simulated. A simulated
// service overrides the calls that it has.

#pragma once

#include <grpcpp/grpcpp.h>

#include "ckv/v1/directory.grpc.pb.h"
#include "ckv/v1/holder.grpc.pb.h"
#include "ckv/v1/store.grpc.pb.h"

namespace ckv::sim {

inline grpc::Status NotSimulated(const char* call) {
  return {grpc::StatusCode::UNIMPLEMENTED, std::string(call) + " is not simulated"};
}

// The product makes no asynchronous calls with these stubs.
#define CKV_SIM_UNARY_OF(Name, Request, Reply)                                       \
  grpc::Status Name(grpc::ClientContext*, const v1::Request&, v1::Reply*) override { \
    return NotSimulated(#Name);                                                      \
  }                                                                                  \
  grpc::ClientAsyncResponseReaderInterface<v1::Reply>* Async##Name##Raw(             \
      grpc::ClientContext*, const v1::Request&, grpc::CompletionQueue*) override {   \
    return nullptr;                                                                  \
  }                                                                                  \
  grpc::ClientAsyncResponseReaderInterface<v1::Reply>* PrepareAsync##Name##Raw(      \
      grpc::ClientContext*, const v1::Request&, grpc::CompletionQueue*) override {   \
    return nullptr;                                                                  \
  }
#define CKV_SIM_UNARY(Name) CKV_SIM_UNARY_OF(Name, Name##Request, Name##Reply)

#define CKV_SIM_READER(Name, Request, Reply)                                                  \
  grpc::ClientReaderInterface<v1::Reply>* Name##Raw(grpc::ClientContext*, const v1::Request&) \
      override {                                                                              \
    return nullptr;                                                                           \
  }                                                                                           \
  grpc::ClientAsyncReaderInterface<v1::Reply>* Async##Name##Raw(                              \
      grpc::ClientContext*, const v1::Request&, grpc::CompletionQueue*, void*) override {     \
    return nullptr;                                                                           \
  }                                                                                           \
  grpc::ClientAsyncReaderInterface<v1::Reply>* PrepareAsync##Name##Raw(                       \
      grpc::ClientContext*, const v1::Request&, grpc::CompletionQueue*) override {            \
    return nullptr;                                                                           \
  }

#define CKV_SIM_WRITER(Name, Request, Reply)                                                       \
  grpc::ClientWriterInterface<v1::Request>* Name##Raw(grpc::ClientContext*, v1::Reply*) override { \
    return nullptr;                                                                                \
  }                                                                                                \
  grpc::ClientAsyncWriterInterface<v1::Request>* Async##Name##Raw(                                 \
      grpc::ClientContext*, v1::Reply*, grpc::CompletionQueue*, void*) override {                  \
    return nullptr;                                                                                \
  }                                                                                                \
  grpc::ClientAsyncWriterInterface<v1::Request>* PrepareAsync##Name##Raw(                          \
      grpc::ClientContext*, v1::Reply*, grpc::CompletionQueue*) override {                         \
    return nullptr;                                                                                \
  }

class DirectoryServiceStub : public v1::DirectoryService::StubInterface {
 public:
  CKV_SIM_UNARY(Register)
  CKV_SIM_UNARY(KeepAlive)
  CKV_SIM_UNARY(Deregister)
  CKV_SIM_UNARY(ListMembers)
  CKV_SIM_UNARY_OF(Describe, DescribeDirectoryRequest, DescribeDirectoryReply)
  CKV_SIM_UNARY(PublishCorpus)
  CKV_SIM_UNARY(GetCorpus)
  CKV_SIM_UNARY(ListCorpora)
  CKV_SIM_UNARY(DropCorpus)
  CKV_SIM_UNARY(LocateChunk)
  CKV_SIM_UNARY(LocateChunks)
  CKV_SIM_UNARY(GetTenantKey)
  CKV_SIM_UNARY(FindPrompt)
  CKV_SIM_UNARY(CountReferences)
  CKV_SIM_UNARY(AnnounceReplicas)
  CKV_SIM_UNARY(WithdrawReplicas)
  CKV_SIM_UNARY(ListPlacedCorpora)
  CKV_SIM_UNARY(ListPlaced)
  CKV_SIM_UNARY(ReportPart)
  CKV_SIM_UNARY(ReportDropped)
  CKV_SIM_UNARY(ReportLacking)
  CKV_SIM_UNARY(ListCopyOrders)
  CKV_SIM_UNARY(ReportCopies)
  CKV_SIM_UNARY(DrainHolder)
  CKV_SIM_UNARY(ReportLoad)
  CKV_SIM_UNARY(Rank)
  CKV_SIM_READER(Watch, WatchRequest, WatchEvent)
  CKV_SIM_READER(Export, ExportRequest, DirectoryRecords)
  CKV_SIM_WRITER(Import, DirectoryRecords, ImportReply)
};

class HolderServiceStub : public v1::HolderService::StubInterface {
 public:
  CKV_SIM_UNARY(OpenSession)
  CKV_SIM_UNARY(CloseSession)
  CKV_SIM_UNARY(ResolveChunks)
  CKV_SIM_WRITER(PutChunk, PutChunkRequest, PutChunkReply)
  CKV_SIM_UNARY(GetChunkInfo)
  CKV_SIM_UNARY(ListChunks)
  CKV_SIM_UNARY(PinChunk)
  CKV_SIM_UNARY(DropChunk)
  CKV_SIM_READER(ReadChunk, ReadChunkRequest, ReadChunkReply)
  CKV_SIM_READER(PushChunks, PushChunksRequest, PushChunksReply)
  CKV_SIM_READER(VerifyChunks, VerifyChunksRequest, VerifyChunksReply)
  CKV_SIM_UNARY(Stats)
};

class StoreServiceStub : public v1::StoreService::StubInterface {
 public:
  CKV_SIM_UNARY(GetCapacity)
  CKV_SIM_UNARY(KeepPlaced)
};

#undef CKV_SIM_UNARY
#undef CKV_SIM_UNARY_OF
#undef CKV_SIM_READER
#undef CKV_SIM_WRITER

}  // namespace ckv::sim
