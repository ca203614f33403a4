// What a client of the control plane does, for tests: puts, attends, and what the answer must be.

#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/bf16.h"
#include "ckv/v1/directory.grpc.pb.h"
#include "ckv/v1/holder.grpc.pb.h"
#include "ckv/v1/requester.grpc.pb.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "proto/convert.h"
#include "tests/support/test_corpus.h"

namespace ckv::test {

// A client's context that gives up after `timeout`.
class Call {
 public:
  explicit Call(Duration timeout = std::chrono::seconds(20)) {
    SetDeadline(context_, *Clock::Real(), Clock::Real()->Now() + timeout, timeout);
  }
  grpc::ClientContext* get() { return &context_; }

 private:
  grpc::ClientContext context_;
};

inline v1::PutChunkRequest HeaderOf(const Geometry& geometry, const TestChunk& chunk) {
  v1::PutChunkRequest message;
  v1::PutChunkRequest::Header* header = message.mutable_header();
  *header->mutable_geometry() = ToProto(geometry);
  header->set_id(std::string(chunk.info.id.AsBytes()));
  header->set_parent(std::string(chunk.info.parent.AsBytes()));
  header->set_position(chunk.info.position);
  header->set_token_ids(Int32sToBytes(chunk.info.token_ids));
  for (const uint64_t checksum : chunk.info.tensor_checksums)
    header->add_tensor_checksums(checksum);
  return message;
}

inline v1::PutChunkRequest RowsOf(const TestChunk& chunk, uint32_t layer, size_t offset,
                                  size_t bytes) {
  v1::PutChunkRequest message;
  message.mutable_rows()->set_tensor(layer);
  message.mutable_rows()->set_offset_bytes(offset);
  const char* rows = reinterpret_cast<const char*>(chunk.layers[layer].data());
  message.mutable_rows()->set_rows(rows + offset, bytes);
  return message;
}

// Sends `messages` as one put and returns its end.
inline grpc::Status PutMessages(v1::HolderService::StubInterface& holder,
                                const std::vector<v1::PutChunkRequest>& messages) {
  Call call;
  v1::PutChunkReply reply;
  const auto writer = holder.PutChunk(call.get(), &reply);
  for (const v1::PutChunkRequest& message : messages) {
    if (!writer->Write(message)) break;
  }
  writer->WritesDone();
  return writer->Finish();
}

// All messages of a chunk, with rows in pieces of `piece_bytes`.
inline std::vector<v1::PutChunkRequest> MessagesOf(const Geometry& geometry, const TestChunk& chunk,
                                                   size_t piece_bytes = 5000) {
  std::vector<v1::PutChunkRequest> messages = {HeaderOf(geometry, chunk)};
  for (uint32_t tensor = 0; tensor < geometry.tensor_count(); ++tensor) {
    const size_t total = chunk.layers[tensor].size() * sizeof(uint16_t);
    for (size_t offset = 0; offset < total; offset += piece_bytes) {
      messages.push_back(RowsOf(chunk, tensor, offset, std::min(piece_bytes, total - offset)));
    }
  }
  return messages;
}

inline grpc::Status Put(v1::HolderService::StubInterface& holder, const Geometry& geometry,
                        const TestChunk& chunk) {
  return PutMessages(holder, MessagesOf(geometry, chunk));
}

inline grpc::Status Publish(v1::DirectoryService::StubInterface& directory, const Corpus& corpus) {
  Call call;
  v1::PublishCorpusRequest request;
  *request.mutable_corpus() = ToProto(corpus);
  v1::PublishCorpusReply reply;
  return directory.PublishCorpus(call.get(), request, &reply);
}

inline v1::AttendRequest AttendOf(const std::string& corpus, uint32_t layer,
                                  const std::vector<uint16_t>& q, uint32_t d_qk) {
  v1::AttendRequest request;
  request.set_corpus(corpus);
  request.set_layer(layer);
  request.set_row_count(static_cast<uint32_t>(q.size() / d_qk));
  request.set_q(q.data(), q.size() * sizeof(uint16_t));
  request.set_wire(v1::PARTIAL_DTYPE_F32);
  return request;
}

// The partial in f64, straight from its definition.
struct ReferencePartial {
  std::vector<double> o, m, l;
};
inline ReferencePartial Reference(const Geometry& geometry, std::span<const uint16_t> q,
                                  std::span<const uint16_t> rows) {
  const size_t q_count = q.size() / geometry.d_qk;
  const size_t row_count = rows.size() / geometry.d_qk;
  ReferencePartial out{std::vector<double>(q_count * geometry.d_v, 0.0),
                       std::vector<double>(q_count, -HUGE_VAL), std::vector<double>(q_count, 0.0)};
  std::vector<double> logits(row_count);
  for (size_t i = 0; i < q_count; ++i) {
    for (size_t j = 0; j < row_count; ++j) {
      double dot = 0;
      for (size_t d = 0; d < geometry.d_qk; ++d) {
        dot += double{FloatFromBf16(q[i * geometry.d_qk + d])} *
               double{FloatFromBf16(rows[j * geometry.d_qk + d])};
      }
      logits[j] = dot * double{geometry.softmax_scale};
      out.m[i] = std::max(out.m[i], logits[j]);
    }
    for (size_t j = 0; j < row_count; ++j) {
      const double weight = std::exp(logits[j] - out.m[i]);
      out.l[i] += weight;
      for (size_t d = 0; d < geometry.d_v; ++d) {
        out.o[i * geometry.d_v + d] += weight * double{FloatFromBf16(rows[j * geometry.d_qk + d])};
      }
    }
    for (size_t d = 0; d < geometry.d_v && row_count > 0; ++d) {
      out.o[i * geometry.d_v + d] /= out.l[i];
    }
  }
  return out;
}

inline std::vector<float> FloatsOf(const std::string& bytes) {
  std::vector<float> floats(bytes.size() / sizeof(float));
  if (!floats.empty()) std::memcpy(floats.data(), bytes.data(), floats.size() * sizeof(float));
  return floats;
}

// 5e-7 x max(1, max|o|) is what f32 partials promise; m and l are sums of d_qk and row_count f32
// products.
inline void ExpectNear(const v1::AttendReply& reply, const ReferencePartial& expected) {
  const std::vector<float> o = FloatsOf(reply.o());
  const std::vector<float> m = FloatsOf(reply.m());
  const std::vector<float> l = FloatsOf(reply.l());
  ASSERT_EQ(o.size(), expected.o.size());
  ASSERT_EQ(m.size(), expected.m.size());
  ASSERT_EQ(l.size(), expected.l.size());
  double o_max = 1;
  for (const double value : expected.o) o_max = std::max(o_max, std::abs(value));
  double worst = 0;
  for (size_t i = 0; i < o.size(); ++i) worst = std::max(worst, std::abs(o[i] - expected.o[i]));
  EXPECT_LE(worst, 5e-7 * o_max);
  for (size_t i = 0; i < m.size(); ++i) {
    if (expected.l[i] == 0) {
      EXPECT_EQ(m[i], expected.m[i]);  // -inf
    } else {
      EXPECT_NEAR(m[i], expected.m[i], 1e-5 * std::max(1.0, std::abs(expected.m[i])));
    }
    EXPECT_NEAR(l[i], expected.l[i], 1e-5 * std::max(1.0, expected.l[i]));
  }
}

inline std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}
inline grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

// grpc.health.v1.Health/Check of `service`: 1 serving, 2 not; or the call's error. Debian installs
// no generated code for it, so the two messages of one field are written out.
struct HealthAnswer {
  grpc::Status status;
  int serving = 0;
};
inline HealthAnswer CheckHealth(const std::shared_ptr<grpc::Channel>& channel,
                                const std::string& service) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  Call call;
  const std::string request = std::string("\x0a") + static_cast<char>(service.size()) + service;
  auto reader =
      stub.PrepareUnaryCall(call.get(), "/grpc.health.v1.Health/Check", BufferOf(request), &queue);
  reader->StartCall();
  HealthAnswer answer;
  grpc::ByteBuffer reply;
  reader->Finish(&reply, &answer.status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (answer.status.ok()) {
    const std::string bytes = BytesOf(reply);
    if (bytes.size() == 2 && bytes[0] == 0x08) answer.serving = static_cast<uint8_t>(bytes[1]);
  }
  return answer;
}

// The reply of grpc.reflection.v1alpha's list_services, as bytes with the names inside.
inline std::string ListServices(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  Call call;
  const auto wait = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto stream = stub.PrepareCall(
      call.get(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  stream->StartCall(nullptr);
  EXPECT_TRUE(wait());
  stream->Write(BufferOf(std::string("\x3a\x00", 2)), nullptr);
  EXPECT_TRUE(wait());
  grpc::ByteBuffer reply;
  stream->Read(&reply, nullptr);
  EXPECT_TRUE(wait());
  stream->WritesDone(nullptr);
  EXPECT_TRUE(wait());
  grpc::Status status;
  stream->Finish(&status, nullptr);
  wait();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return BytesOf(reply);
}

}  // namespace ckv::test
