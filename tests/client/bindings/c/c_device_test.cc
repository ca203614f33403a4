// Goal: a program in C has its queries, own rows, answers and fetched rows in memory of a device,
// ordered after its own stream, and gets the bits that it gets in host memory.
// Method: a requester over a backend that does nothing before it is waited for, and whose memory
// ends the process if it is touched. The engine's stream has unfinished work when a call begins.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/bindings/c/ckv.h"
#include "client/bindings/c/handles.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/test_fleet.h"

namespace ckv::c {
namespace {

using test::Answer;
using test::DeferredBackend;
using testing::HasSubstr;

class CDeviceTest : public testing::Test {
 protected:
  static constexpr uint32_t kRows = 24, kOwn = 5, kQueryValues = 96, kAnswerValues = 64;

  CDeviceTest() {
    for (size_t i = 0; i < 2; ++i) fleet_.StartHolder(i);
    fleet_.Load("c", chunks_, {0, 1, 0});
    cpu_ = Start(Backend::Cpu(), "cpu");
    on_device_ = Start(&device_, "device");
    here_ = std::make_unique<ckv_requester>(nullptr, cpu_.get(), "");
    there_ = std::make_unique<ckv_requester>(nullptr, on_device_.get(), "", "", &device_, "told");
    EXPECT_EQ(ckv_resolve(here_.get(), "c", CKV_TIMEOUT_DEFAULT, &corpus_), CKV_OK);
    EXPECT_EQ(ckv_stream_open(there_.get(), native_.get(), &stream_), CKV_OK);
  }
  void TearDown() override {
    ckv_stream_free(stream_);
    ckv_corpus_free(corpus_);
  }

  std::unique_ptr<Requester> Start(Backend* backend, const char* id) {
    RequesterOptions options;
    options.fabrics = {fabric_.get()};
    options.backend = backend;
    options.id = id;
    auto made = Requester::Create(options, &fleet_, &fleet_);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  BackendMemory Allocate(uint32_t kind, size_t bytes) {
    return *device_.Allocate(static_cast<MemoryKind>(kind), bytes);
  }
  BackendMemory Put(uint32_t kind, std::span<const std::byte> bytes) {
    BackendMemory memory = Allocate(kind, bytes.size());
    device_.Copy(memory.data(), bytes);
    return memory;
  }
  std::vector<std::byte> Read(const BackendMemory& memory) {
    std::vector<std::byte> bytes(memory.size());
    device_.Copy(bytes.data(), {memory.data(), memory.size()});
    return bytes;
  }
  // Puts a copy on the engine's stream.
  void CopyOnNative(std::span<const std::byte> from, const BackendMemory& to) {
    const auto bytes = static_cast<uint32_t>(from.size());
    EXPECT_TRUE(device_
                    .Rotate(RopeRotation(RopeParams(), 0, 0), {from.data(), 1, bytes}, bytes,
                            {to.data(), to.kind()}, *native_)
                    .ok());
    EXPECT_FALSE(native_->Ready());
  }
  ckv_context* OpenContext(ckv_requester* requester) {
    ckv_part part = {};
    part.struct_size = sizeof(part);
    part.corpus = corpus_;
    ckv_context_spec spec = {};
    spec.struct_size = sizeof(spec);
    spec.parts = &part;
    spec.part_count = 1;
    spec.policy = CKV_POLICY_ROUTE;
    ckv_context* context = nullptr;
    EXPECT_EQ(ckv_context_open(requester, &spec, &context), CKV_OK) << ckv_last_error(nullptr);
    return context;
  }

  // A call of one sequence with own rows, whose memory the caller sets.
  struct Asked {
    ckv_own_rows own = {};
    ckv_segment segment = {};
    ckv_attend_call call = {};
  };
  std::unique_ptr<Asked> Ask(ckv_context* context) {
    auto requested = std::make_unique<Asked>();
    requested->own.struct_size = sizeof(requested->own);
    requested->own.rows = own_.data();
    requested->own.row_count = kOwn;
    requested->segment.struct_size = sizeof(requested->segment);
    requested->segment.context = context;
    requested->segment.own = &requested->own;
    requested->segment.own_count = 1;
    requested->call.struct_size = sizeof(requested->call);
    requested->call.layer = 1;
    requested->call.row_count = kRows;
    requested->call.q = q_.data();
    requested->call.wire = CKV_DTYPE_F32;
    requested->call.segments = &requested->segment;
    requested->call.segment_count = 1;
    return requested;
  }
  static void AnswerInto(float* o, ckv_attend_call& call) {
    call.o = o;
    call.m = o + kRows * kAnswerValues;
    call.l = call.m + kRows;
  }
  static constexpr size_t kAnswerFloats = kRows * (kAnswerValues + 2);

  // By the processor, in host memory, with nothing to wait for.
  std::vector<std::byte> Want(bool with_own = true) {
    ckv_context* const context = OpenContext(here_.get());
    const auto requested = Ask(context);
    if (!with_own) requested->segment.own_count = 0;
    std::vector<float> answer(kAnswerFloats);
    AnswerInto(answer.data(), requested->call);
    EXPECT_EQ(ckv_attend(here_.get(), &requested->call, nullptr), CKV_OK)
        << ckv_last_error(nullptr);
    ckv_context_close(context);
    const auto bytes = std::as_bytes(std::span(answer));
    return {bytes.begin(), bytes.end()};
  }

  // The rows of both layers after a fetch into host memory.
  ckv_fetch_call FetchInto(void* rows, size_t bytes) const {
    ckv_fetch_call call = {};
    call.struct_size = sizeof(call);
    call.corpus = corpus_;
    call.rows = rows;
    call.rows_bytes = bytes;
    call.rotate = 1;
    call.position = 77;
    return call;
  }

  std::mt19937 rng_{5};
  const test::TestCorpus chunks_ = test::MakeTestCorpus(test::TestGeometry(), {40, 9, 70}, 1);
  const std::vector<uint16_t> q_ = test::RandomBf16(size_t{kRows} * kQueryValues, rng_);
  const std::vector<uint16_t> own_ = test::RandomBf16(size_t{kOwn} * kQueryValues, rng_);
  const std::unique_ptr<Fabric> fabric_ = NewShmFabric(Clock::Real());
  DeferredBackend device_;
  const std::unique_ptr<ComputeStream> native_ = *device_.NewStream(1);
  test::TestFleet fleet_{{fabric_.get()}};
  std::unique_ptr<Requester> cpu_, on_device_;
  std::unique_ptr<ckv_requester> here_, there_;
  ckv_corpus* corpus_ = nullptr;
  ckv_stream* stream_ = nullptr;
};

TEST_F(CDeviceTest, AnAnswerAfterABusyStreamHasTheBitsOfOneInHostMemory) {
  const std::vector<std::byte> want = Want();
  ckv_context* const context = OpenContext(there_.get());
  for (const uint32_t kind : {CKV_MEMORY_HOST, CKV_MEMORY_PINNED, CKV_MEMORY_DEVICE}) {
    for (const bool by_ticket : {false, true}) {
      SCOPED_TRACE(testing::Message() << "kind " << kind << (by_ticket ? ", by ticket" : ""));
      const auto q = std::as_bytes(std::span(q_)), own = std::as_bytes(std::span(own_));
      const BackendMemory q_here = Allocate(kind, q.size()), own_here = Allocate(kind, own.size());
      const BackendMemory answer = Allocate(kind, kAnswerFloats * sizeof(float));
      const auto requested = Ask(context);
      requested->call.q = reinterpret_cast<const uint16_t*>(q_here.data());
      requested->own.rows = own_here.data();
      AnswerInto(reinterpret_cast<float*>(answer.data()), requested->call);
      requested->call.q_memory = requested->call.out_memory = requested->own.memory = kind;
      requested->call.after = stream_;
      // All memory that the call reads is still to be written, and so is something in its answer.
      const std::vector<std::byte> old(answer.size(), std::byte{9});
      CopyOnNative(q, q_here);
      CopyOnNative(own, own_here);
      CopyOnNative(old, answer);
      if (by_ticket) {
        ckv_ticket* ticket = nullptr;
        ASSERT_EQ(ckv_submit(there_.get(), &requested->call, nullptr, &ticket), CKV_OK)
            << ckv_last_error(nullptr);
        int done = 0;
        EXPECT_EQ(ckv_poll(ticket, &done), CKV_OK);
        EXPECT_EQ(done, 0) << "nothing is done before a wait";
        EXPECT_EQ(ckv_wait(ticket, CKV_TIMEOUT_NONE, &done), CKV_OK) << ckv_last_error(nullptr);
        EXPECT_EQ(done, 1);
        ckv_ticket_free(ticket);
      } else {
        ASSERT_EQ(ckv_attend(there_.get(), &requested->call, nullptr), CKV_OK)
            << ckv_last_error(nullptr);
      }
      EXPECT_EQ(Read(answer), want);
    }
  }
  ckv_context_close(context);
}

// Like an engine that submits its queries before it writes the step's own rows.
TEST_F(CDeviceTest, OwnRowsAndTheAnswerWaitForWorkQueuedBeforeTheFirstWait) {
  ckv_context* const context = OpenContext(there_.get());
  const auto own = std::as_bytes(std::span(own_));
  for (const bool own_late : {false, true}) {
    SCOPED_TRACE(own_late ? "own rows" : "the answer");
    const std::vector<std::byte> want = Want(own_late);
    const BackendMemory q_here = Put(CKV_MEMORY_DEVICE, std::as_bytes(std::span(q_)));
    const BackendMemory own_here = Allocate(CKV_MEMORY_DEVICE, own.size());
    const BackendMemory answer = Allocate(CKV_MEMORY_DEVICE, kAnswerFloats * sizeof(float));
    const std::vector<std::byte> old(answer.size(), std::byte{9});
    const auto requested = Ask(context);
    requested->call.q = reinterpret_cast<const uint16_t*>(q_here.data());
    requested->own.rows = own_here.data();
    if (!own_late) requested->segment.own_count = 0;
    AnswerInto(reinterpret_cast<float*>(answer.data()), requested->call);
    requested->call.q_memory = requested->call.out_memory = requested->own.memory =
        CKV_MEMORY_DEVICE;
    requested->call.after = stream_;
    ckv_ticket* ticket = nullptr;
    ASSERT_EQ(ckv_submit(there_.get(), &requested->call, nullptr, &ticket), CKV_OK)
        << ckv_last_error(nullptr);
    if (own_late) {
      CopyOnNative(own, own_here);
    } else {
      CopyOnNative(old, answer);
    }
    int done = 0;
    EXPECT_EQ(ckv_wait(ticket, CKV_TIMEOUT_NONE, &done), CKV_OK) << ckv_last_error(nullptr);
    EXPECT_TRUE(native_->Ready());
    ckv_ticket_free(ticket);
    device_.DoAll();
    EXPECT_EQ(Read(answer), want);
  }
  ckv_context_close(context);
}

// Shows that the tests above prove an order.
TEST_F(CDeviceTest, WithoutTheStreamACallDoesNotWaitForIt) {
  ckv_context* const context = OpenContext(there_.get());
  const auto q = std::as_bytes(std::span(q_));
  const BackendMemory q_here = Allocate(CKV_MEMORY_DEVICE, q.size());
  std::vector<float> answer(kAnswerFloats);
  const auto requested = Ask(context);
  requested->call.q = reinterpret_cast<const uint16_t*>(q_here.data());
  requested->call.q_memory = CKV_MEMORY_DEVICE;
  AnswerInto(answer.data(), requested->call);
  CopyOnNative(q, q_here);
  EXPECT_EQ(ckv_attend(there_.get(), &requested->call, nullptr), CKV_OK) << ckv_last_error(nullptr);
  EXPECT_FALSE(native_->Ready());
  EXPECT_NE(std::memcmp(answer.data(), Want().data(), sizeof(float) * answer.size()), 0);
  device_.DoAll();  // while its memory is valid
  ckv_context_close(context);
}

TEST_F(CDeviceTest, RowsAreFetchedIntoMemoryOfADevice) {
  const Geometry& geometry = corpus_->corpus->geometry;
  const uint64_t tokens = corpus_->corpus->token_count(), row = geometry.row_bytes();
  // Rows one after another, and rows with a gap.
  for (const uint64_t stride : {row, row + 32}) {
    for (const bool by_ticket : {false, true}) {
      SCOPED_TRACE(testing::Message() << "stride " << stride << (by_ticket ? ", by ticket" : ""));
      std::vector<std::byte> want(geometry.layers * tokens * stride, std::byte{9});
      ckv_fetch_call call = FetchInto(want.data(), want.size());
      call.token_stride = stride;
      ASSERT_EQ(ckv_fetch(here_.get(), &call, nullptr), CKV_OK) << ckv_last_error(nullptr);

      const BackendMemory rows = Allocate(CKV_MEMORY_DEVICE, want.size());
      const BackendMemory other = Allocate(CKV_MEMORY_DEVICE, 64);
      const std::vector<std::byte> old(want.size(), std::byte{9});
      CopyOnNative(old, rows);
      call.rows = rows.data();
      call.rows_memory = CKV_MEMORY_DEVICE;
      call.after = stream_;
      if (by_ticket) {
        ckv_fetch_ticket* ticket = nullptr;
        ASSERT_EQ(ckv_fetch_begin(there_.get(), &call, &ticket), CKV_OK) << ckv_last_error(nullptr);
        CopyOnNative(std::span(old).first(64), other);
        int done = 0;
        for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
          EXPECT_EQ(ckv_fetch_wait_layer(ticket, layer, CKV_TIMEOUT_DEFAULT, &done), CKV_OK);
          EXPECT_EQ(done, 1);
        }
        EXPECT_FALSE(native_->Ready()) << "work that came later is not waited for";
        EXPECT_EQ(Read(rows), want);
        ckv_fetch_ticket_free(ticket);
        device_.DoAll();
      } else {
        ASSERT_EQ(ckv_fetch(there_.get(), &call, nullptr), CKV_OK) << ckv_last_error(nullptr);
      }
      EXPECT_TRUE(native_->Ready());
      EXPECT_EQ(Read(rows), want);
    }
  }
}

TEST_F(CDeviceTest, RowsAreFetchedIntoBlocksOfADevice) {
  const Geometry& geometry = corpus_->corpus->geometry;
  constexpr uint32_t kBlockRows = 16, kBlocks = 11;
  const size_t bytes = size_t{kBlocks} * kBlockRows * geometry.row_bytes();
  const std::vector<uint32_t> table = {3, 10, 0, 7, 5, 2, 8, 1};
  ckv_block_place place = {};
  place.struct_size = sizeof(place);
  place.table = table.data();
  place.table_count = static_cast<uint32_t>(table.size());
  place.block_count = kBlocks;
  place.block_rows = kBlockRows;
  place.token_begin = 5;
  ckv_fetch_call call = FetchInto(nullptr, 0);
  call.place = &place;
  std::vector<std::vector<std::byte>> want(geometry.layers, std::vector<std::byte>(bytes));
  std::vector<void*> layers;
  for (auto& cache : want) layers.push_back(cache.data());
  place.layers = layers.data();
  ASSERT_EQ(ckv_fetch(here_.get(), &call, nullptr), CKV_OK) << ckv_last_error(nullptr);

  const std::vector<std::byte> zeros(bytes);  // valid until the stream has copied them
  std::vector<BackendMemory> caches;
  for (void*& layer : layers) {
    caches.push_back(Allocate(CKV_MEMORY_DEVICE, bytes));
    CopyOnNative(zeros, caches.back());
    layer = caches.back().data();
  }
  call.rows_memory = CKV_MEMORY_DEVICE;
  call.after = stream_;
  ASSERT_EQ(ckv_fetch(there_.get(), &call, nullptr), CKV_OK) << ckv_last_error(nullptr);
  for (uint32_t layer = 0; layer < geometry.layers; ++layer)
    EXPECT_EQ(Read(caches[layer]), want[layer]);
  place.block_stride_bytes = geometry.row_bytes() * kBlockRows + 64;
  EXPECT_EQ(ckv_fetch(there_.get(), &call, nullptr), CKV_INVALID_ARGUMENT);
}

// This process writes the rows, so it waits for the stream itself.
TEST_F(CDeviceTest, RowsInHostMemoryWaitForTheStream) {
  const Geometry& geometry = corpus_->corpus->geometry;
  std::vector<std::byte> want(geometry.layers * corpus_->corpus->token_count() *
                              geometry.row_bytes());
  ckv_fetch_call call = FetchInto(want.data(), want.size());
  ASSERT_EQ(ckv_fetch(here_.get(), &call, nullptr), CKV_OK) << ckv_last_error(nullptr);
  const BackendMemory rows = Allocate(CKV_MEMORY_PINNED, want.size());
  const std::vector<std::byte> old(want.size(), std::byte{9});
  call.rows = rows.data();
  call.rows_memory = CKV_MEMORY_PINNED;
  call.after = stream_;
  CopyOnNative(old, rows);
  ASSERT_EQ(ckv_fetch(there_.get(), &call, nullptr), CKV_OK) << ckv_last_error(nullptr);
  EXPECT_TRUE(native_->Ready());
  EXPECT_EQ(Read(rows), want);
  CopyOnNative(old, rows);
  ckv_fetch_ticket* ticket = nullptr;
  ASSERT_EQ(ckv_fetch_begin(there_.get(), &call, &ticket), CKV_OK) << ckv_last_error(nullptr);
  const BackendMemory later = Allocate(CKV_MEMORY_PINNED, want.size());
  CopyOnNative(old, later);
  int done = 0;
  EXPECT_EQ(ckv_fetch_wait(ticket, CKV_TIMEOUT_DEFAULT, &done, nullptr), CKV_OK);
  EXPECT_EQ(done, 1);
  EXPECT_FALSE(native_->Ready()) << "the work that came after it began";
  EXPECT_EQ(Read(rows), want);
  ckv_fetch_ticket_free(ticket);
  EXPECT_TRUE(native_->Wait().ok());
  // A stream that takes longer than the call may: no holder is blamed.
  CopyOnNative(old, rows);
  call.timeout_ns = 1;
  EXPECT_EQ(ckv_fetch(there_.get(), &call, nullptr), CKV_DEADLINE_EXCEEDED);
  EXPECT_THAT(ckv_last_error(there_.get()), HasSubstr("on the stream"));
}

TEST_F(CDeviceTest, RefusesMemoryThatTheBackendDoesNotReach) {
  ckv_context* const context = OpenContext(here_.get());
  std::vector<float> answer(kAnswerFloats, 7);
  const auto refused = [&](const std::function<void(Asked&)>& change, const char* what) {
    const auto requested = Ask(context);
    AnswerInto(answer.data(), requested->call);
    change(*requested);
    EXPECT_EQ(ckv_attend(here_.get(), &requested->call, nullptr), CKV_INVALID_ARGUMENT) << what;
    EXPECT_THAT(ckv_last_error(here_.get()), HasSubstr(what));
    ckv_ticket* ticket = nullptr;
    EXPECT_EQ(ckv_submit(here_.get(), &requested->call, nullptr, &ticket), CKV_INVALID_ARGUMENT);
    EXPECT_EQ(ticket, nullptr);
    EXPECT_THAT(answer, testing::Each(7));
  };
  const char* const todo =
      "this requester computes on the processor: open it with backend \"cuda\"";
  refused([](Asked& a) { a.call.q_memory = CKV_MEMORY_DEVICE; }, todo);
  refused([](Asked& a) { a.call.out_memory = CKV_MEMORY_DEVICE; }, todo);
  refused([](Asked& a) { a.own.memory = CKV_MEMORY_DEVICE; }, todo);
  refused([](Asked& a) { a.call.q_memory = 3; }, "q: 3 is no kind of memory");
  refused([](Asked& a) { a.call.out_memory = 256; }, "o, m and l: 256 is no kind of memory");
  refused([](Asked& a) { a.own.memory = UINT32_MAX; }, "is no kind of memory");
  refused([](Asked& a) { a.own.reserved = 1; }, "reserved");
  // The processor reaches pinned memory as it is.
  const auto pinned = Ask(context);
  AnswerInto(answer.data(), pinned->call);
  pinned->call.q_memory = pinned->call.out_memory = pinned->own.memory = CKV_MEMORY_PINNED;
  EXPECT_EQ(ckv_attend(here_.get(), &pinned->call, nullptr), CKV_OK) << ckv_last_error(nullptr);
  ckv_context_close(context);

  std::vector<std::byte> rows(size_t{1} << 20);
  ckv_fetch_call call = FetchInto(rows.data(), rows.size());
  call.rows_memory = CKV_MEMORY_DEVICE;
  EXPECT_EQ(ckv_fetch(here_.get(), &call, nullptr), CKV_INVALID_ARGUMENT);
  EXPECT_THAT(ckv_last_error(here_.get()), HasSubstr(todo));
  ckv_fetch_ticket* ticket = nullptr;
  EXPECT_EQ(ckv_fetch_begin(here_.get(), &call, &ticket), CKV_INVALID_ARGUMENT);
  call.rows_memory = 3;
  EXPECT_EQ(ckv_fetch(here_.get(), &call, nullptr), CKV_INVALID_ARGUMENT);

  ckv_stream* stream = stream_;
  EXPECT_EQ(ckv_stream_open(here_.get(), native_.get(), &stream), CKV_UNIMPLEMENTED);
  EXPECT_THAT(ckv_last_error(here_.get()), HasSubstr(todo));
  EXPECT_EQ(stream, nullptr);
  EXPECT_EQ(ckv_stream_open(there_.get(), native_.get(), nullptr), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(ckv_stream_open(nullptr, native_.get(), &stream), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(ckv_stream_open(there_.get(), nullptr, &stream), CKV_OK) << "the default stream";
  ckv_stream_free(stream);
  ckv_stream_free(nullptr);
  EXPECT_STREQ(ckv_backend_reason(there_.get()), "told");
  EXPECT_STREQ(ckv_backend_reason(nullptr), "");
}

// By default, memory is the host's and no stream is waited for, also with a device's backend.
TEST_F(CDeviceTest, ByDefaultMemoryIsTheHostsWithoutAStream) {
  ckv_context* const context = OpenContext(there_.get());
  const auto requested = Ask(context);
  std::vector<float> answer(kAnswerFloats);
  AnswerInto(answer.data(), requested->call);
  ASSERT_EQ(ckv_attend(there_.get(), &requested->call, nullptr), CKV_OK) << ckv_last_error(nullptr);
  EXPECT_EQ(std::memcmp(answer.data(), Want().data(), sizeof(float) * answer.size()), 0);
  ckv_context_close(context);

  const Geometry& geometry = corpus_->corpus->geometry;
  std::vector<std::byte> rows(geometry.layers * corpus_->corpus->token_count() *
                              geometry.row_bytes());
  const ckv_fetch_call call = FetchInto(rows.data(), rows.size());
  EXPECT_EQ(ckv_fetch(there_.get(), &call, nullptr), CKV_OK) << ckv_last_error(nullptr);
}

// A failed device ends the fetch, and leaves nothing in progress.
TEST_F(CDeviceTest, ADeviceThatFailsEndsTheFetch) {
  const BackendMemory rows = Allocate(CKV_MEMORY_DEVICE, size_t{1} << 20);
  ckv_fetch_call call = FetchInto(rows.data(), rows.size());
  call.rotate = 0;
  call.rows_memory = CKV_MEMORY_DEVICE;
  for (const auto failure :
       {DeferredBackend::Failure::kAtCall, DeferredBackend::Failure::kAtWait}) {
    device_.Fail(failure);
    EXPECT_EQ(ckv_fetch(there_.get(), &call, nullptr), CKV_INTERNAL) << ckv_last_error(nullptr);
    EXPECT_EQ(ckv_fetch(there_.get(), &call, nullptr), CKV_OK) << ckv_last_error(nullptr);
  }
}

}  // namespace
}  // namespace ckv::c
