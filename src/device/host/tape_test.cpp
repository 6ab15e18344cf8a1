// SPDX-License-Identifier: Apache-2.0
#include "anabranch/experimental/tape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/host/tape_call.h"

namespace anabranch::tape {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Handle = TensorLibrary::Handle;
using Numbers = std::vector<std::int64_t>;

// ---- a tensor library of int64 vectors that counts what lives and can fail its n-th call

struct Tensor {
  std::int64_t* data = nullptr;
  Numbers sizes, strides;
  Numbers memory;  // of results
};
using Owner = std::shared_ptr<Tensor>;
using List = std::vector<std::uint64_t>;

struct Fake {
  std::set<void*> tensors;  // handles, that is owners of tensors
  std::set<void*> lists;
  int fail_call = 0;  // the first is 1; 0 fails none
  int calls = 0;
  int views_made = 0;
  Numbers result_strides = {1};
  std::vector<std::string> failed;

  std::size_t live() const { return tensors.size() + lists.size(); }
  std::int32_t enter(const char* name) {
    if (++calls != fail_call) return 0;
    failed.push_back(name);
    return 5;
  }
};
Fake* fake = nullptr;

Handle own(Owner tensor) { return *fake->tensors.insert(new Owner(std::move(tensor))).first; }
Tensor& at(Handle handle) {
  EXPECT_TRUE(fake->tensors.contains(handle)) << "a tensor is used that does not live";
  return **static_cast<Owner*>(handle);
}

std::int32_t create_view(void* data, std::int64_t dims, const std::int64_t* sizes,
                         const std::int64_t* strides, std::int64_t, std::int32_t, std::int32_t,
                         std::int32_t, Handle* out, std::int32_t, const std::uint8_t*,
                         std::int64_t) {
  if (const std::int32_t code = fake->enter("create_view")) return code;
  ++fake->views_made;
  auto tensor = std::make_shared<Tensor>();
  tensor->data = static_cast<std::int64_t*>(data);
  tensor->sizes.assign(sizes, sizes + dims);
  tensor->strides.assign(strides, strides + dims);
  *out = own(tensor);
  return 0;
}

std::int32_t delete_tensor(Handle handle) {
  EXPECT_EQ(fake->tensors.erase(handle), 1u) << "a tensor is deleted that does not live";
  delete static_cast<Owner*>(handle);
  return 0;
}

std::int32_t new_handle(Handle handle, Handle* out) {
  if (const std::int32_t code = fake->enter("new_handle")) return code;
  at(handle);
  *out = own(*static_cast<Owner*>(handle));
  return 0;
}

std::int32_t data_pointer(Handle handle, void** out) {
  if (const std::int32_t code = fake->enter("data_pointer")) return code;
  *out = at(handle).data;
  return 0;
}

std::int32_t strides(Handle handle, std::int64_t** out) {
  if (const std::int32_t code = fake->enter("strides")) return code;
  *out = at(handle).strides.data();
  return 0;
}

std::int32_t copy(Handle to, Handle from, std::int32_t) {
  if (const std::int32_t code = fake->enter("copy")) return code;
  *at(to).data = *at(from).data;
  return 0;
}

std::int32_t new_list(std::size_t, void** out) {
  if (const std::int32_t code = fake->enter("new_list")) return code;
  *out = *fake->lists.insert(new List).first;
  return 0;
}

std::int32_t list_push(void* list, std::uint64_t value) {
  if (const std::int32_t code = fake->enter("list_push")) return code;
  static_cast<List*>(list)->push_back(value);
  return 0;
}

std::int32_t delete_list(void* list) {  // not what is in it
  EXPECT_EQ(fake->lists.erase(list), 1u) << "a list is deleted that does not live";
  delete static_cast<List*>(list);
  return 0;
}

// Takes over one argument and answers its number; `type` is t, i, d, ?<type> or [<type>.
std::int64_t take(const char* type, std::uint64_t word) {
  if (*type == 'i') return static_cast<std::int64_t>(word);
  if (*type == 'd') return static_cast<std::int64_t>(std::bit_cast<double>(word));
  if (*type == '?') {
    const std::unique_ptr<std::uint64_t> some(reinterpret_cast<std::uint64_t*>(word));
    return some ? take(type + 1, *some) : 0;
  }
  if (*type == '[') {
    auto* list = reinterpret_cast<void*>(word);
    std::int64_t sum = 0;
    for (const std::uint64_t item : *static_cast<List*>(list)) sum += take(type + 1, item);
    delete_list(list);
    return sum;
  }
  const std::int64_t number = *at(reinterpret_cast<Handle>(word)).data;
  delete_tensor(reinterpret_cast<Handle>(word));
  return number;
}

// `op` is the number of results, `overload` the types of the arguments. Result i holds i more than
// the sum of all numbers.
std::int32_t dispatch(const char* op, const char* overload, std::uint64_t* stack,
                      std::uint64_t version) {
  EXPECT_EQ(version, 7u);
  std::int64_t sum = 0;
  std::size_t position = 0;
  for (const char* type = overload; *type != '\0'; ++type) {
    sum += take(type, stack[position++]);
    while (*type == '?' || *type == '[') ++type;
  }
  if (const std::int32_t code = fake->enter("dispatch")) return code;
  for (int i = 0; i < std::stoi(op); ++i) {
    auto result = std::make_shared<Tensor>();
    result->memory = {sum + i};
    result->data = result->memory.data();
    result->sizes = {1};
    result->strides = fake->result_strides;
    stack[i] = reinterpret_cast<std::uint64_t>(own(result));
  }
  return 0;
}

const char* last_error() { return "the fake library says no"; }

TensorLibrary fake_library() {
  TensorLibrary library;
  library.create_view = create_view;
  library.delete_tensor = delete_tensor;
  library.new_handle = new_handle;
  library.data_pointer = data_pointer;
  library.strides = strides;
  library.copy = copy;
  library.dispatch = dispatch;
  library.new_list = new_list;
  library.list_push = list_push;
  library.delete_list = delete_list;
  library.last_error = last_error;
  library.version = 7;
  return library;
}

// ---- values of boxed calls

Value integer(std::int64_t number) {
  Value value;
  value.kind = Value::Kind::kInt;
  value.integer = number;
  return value;
}
Value real(double number) {
  Value value;
  value.kind = Value::Kind::kDouble;
  value.real = number;
  return value;
}
Value tensor(Register reg) {
  Value value;
  value.kind = Value::Kind::kTensor;
  value.tensor = reg;
  return value;
}
Value of_items(Value::Kind kind, std::vector<Value> items) {
  Value value;
  value.kind = kind;
  value.items = std::move(items);
  return value;
}
Value some(Value inner) { return of_items(Value::Kind::kSome, {std::move(inner)}); }
Value list(std::vector<Value> items) { return of_items(Value::Kind::kList, std::move(items)); }

// ---- plain functions

Numbers seen;
std::vector<double> seen_doubles;

template <std::size_t>
using Int64At = std::int64_t;
template <std::size_t... I>
void* keeper_of(std::index_sequence<I...>) {
  struct Keeper {
    static void keep(Int64At<I>... values) { seen = {values...}; }
  };
  return reinterpret_cast<void*>(&Keeper::keep);
}

void keep_mixed(std::int64_t a, double x, const std::int64_t* b, double y, std::int32_t c) {
  seen = {a, *b, c};
  seen_doubles = {x, y};
}
void keep_floats(float x, std::int64_t a) {
  seen = {a};
  seen_doubles = {x};
}
std::int32_t add_in_place(std::int64_t* to, const std::int64_t* from, std::int64_t more) {
  if (const std::int32_t code = fake->enter("add_in_place")) return code;
  *to += *from + more;
  return 0;
}
void add(std::int64_t* to, const std::int64_t* from) { *to += *from; }
std::int32_t answer_nine() { return 9; }
void throw_error() { throw std::runtime_error("a kernel threw"); }

template <typename Function>
void* address_of(Function* function) {
  return reinterpret_cast<void*>(function);
}

class TapeTest : public ::testing::Test {
 protected:
  TapeTest() { fake = &fake_; }
  ~TapeTest() override {
    EXPECT_EQ(fake_.live(), 0u) << "tensors or lists are left behind";
    fake = nullptr;
  }

  std::unique_ptr<Tape> finish() {
    auto made = builder_.finish();
    if (made.ok()) return std::move(*made);
    ADD_FAILURE() << made.error().message();
    return nullptr;
  }
  std::string refusal() {
    const auto made = builder_.finish();
    EXPECT_FALSE(made.ok());
    if (made.ok()) return "";
    EXPECT_EQ(made.error().code(), StatusCode::kTapeInvalid);
    return made.error().message();
  }
  std::int32_t run(Tape& tape, std::vector<void*> buffers) {
    error_.fill('#');
    error_[0] = '\0';
    return tape.run({buffers.data(), static_cast<std::uint32_t>(buffers.size()), error_.data(),
                     static_cast<std::uint32_t>(error_.size())});
  }
  std::string error() const { return error_.data(); }

  Register view_of_buffer(std::uint32_t access) {
    return builder_.view({access, 0}, 0, Numbers{1}, Numbers{1});
  }

  Fake fake_;
  TapeBuilder builder_{fake_library()};
  std::array<char, 256> error_{};
};

// ---- plain calls

template <std::size_t count>
void expect_words_arrive(TapeBuilder& builder) {
  std::vector<Argument> arguments;
  for (std::size_t i = 0; i < count; ++i) {
    arguments.emplace_back(static_cast<std::int64_t>(i * 1'000'000'007) * (i % 2 == 0 ? 1 : -1));
  }
  builder.call("keep", keeper_of(std::make_index_sequence<count>()), arguments, false);
  auto tape = builder.finish();
  ASSERT_TRUE(tape.ok());
  seen = {-1};
  ASSERT_EQ((*tape)->run({}), 0);
  ASSERT_EQ(seen.size(), count);
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(seen[i], std::get<std::int64_t>(arguments[i])) << "word " << i << " of " << count;
  }
}

template <std::size_t... I>
void expect_all_counts_arrive(TapeBuilder& builder, std::index_sequence<I...>) {
  (expect_words_arrive<I>(builder), ...);
}

TEST_F(TapeTest, EveryNumberOfWordsArrives) {
  expect_all_counts_arrive(builder_, std::make_index_sequence<kMaxWordArguments + 1>());
}

TEST_F(TapeTest, WordsAndDoublesArriveWhateverTheirOrderInTheSignature) {
  builder_.call("keep_mixed", address_of(keep_mixed),
                {std::int64_t{-7}, Integers{{42, 43}}, std::int64_t{-3}, 0.5, -2.25}, false);
  auto tape = finish();
  ASSERT_EQ(run(*tape, {}), 0);
  EXPECT_THAT(seen, ElementsAre(-7, 42, -3));
  EXPECT_THAT(seen_doubles, ElementsAre(0.5, -2.25));
}

TEST_F(TapeTest, AFloatArrivesInTheLowerHalfOfADouble) {
  const double carrier = std::bit_cast<double>(std::uint64_t{std::bit_cast<std::uint32_t>(1.5f)});
  builder_.call("keep_floats", address_of(keep_floats), {carrier, std::int64_t{4}}, false);
  auto tape = finish();
  ASSERT_EQ(run(*tape, {}), 0);
  EXPECT_THAT(seen, ElementsAre(4));
  EXPECT_THAT(seen_doubles, ElementsAre(1.5));
}

TEST_F(TapeTest, WhatNoRegisterCarriesIsRefused) {
  builder_.call("wide", address_of(answer_nine), std::vector<Argument>(65, std::int64_t{0}), false);
  builder_.call("mixed", address_of(answer_nine),
                {std::int64_t{0}, std::int64_t{0}, std::int64_t{0}, std::int64_t{0},
                 std::int64_t{0}, std::int64_t{0}, std::int64_t{0}, 1.0},
                false);
  builder_.call("doubles", address_of(answer_nine), std::vector<Argument>(9, 1.0), false);
  builder_.call("null", nullptr, {}, false);
  const std::string text = refusal();
  EXPECT_THAT(text, HasSubstr("passes 65 words and 0 doubles"));
  EXPECT_THAT(text, HasSubstr("passes 7 words and 1 doubles"));
  EXPECT_THAT(text, HasSubstr("passes 0 words and 9 doubles"));
  EXPECT_THAT(text, HasSubstr("'null()' calls a null function"));
}

TEST_F(TapeTest, AddressesFollowTheBuffersFromRunToRun) {
  builder_.call("add", address_of(add), {Address{0, 8}, Address{1, 0}}, false);
  builder_.call("add", address_of(add), {Address{0, 0}, Address{0, 8}}, false);
  auto tape = finish();
  for (std::int64_t k = 1; k < 4; ++k) {
    Numbers to = {k, 10 * k}, from = {100 * k};
    ASSERT_EQ(run(*tape, {to.data(), from.data()}), 0);
    EXPECT_THAT(to, ElementsAre(111 * k, 110 * k));
    ASSERT_EQ(run(*tape, {to.data(), from.data()}), 0);  // at the same addresses
    EXPECT_THAT(to, ElementsAre(321 * k, 210 * k));
  }
}

TEST_F(TapeTest, OnlyFallibleCallsStopARun) {
  builder_.call("void", address_of(answer_nine), {}, false);
  builder_.call("checked", address_of(answer_nine), {}, true);
  builder_.call("add", address_of(add), {Address{0, 0}, Address{0, 0}}, false);
  auto tape = finish();
  Numbers untouched = {5};
  EXPECT_EQ(run(*tape, {untouched.data()}), 9);
  EXPECT_EQ(error(), "checked(): the fake library says no");
  EXPECT_THAT(untouched, ElementsAre(5));
}

TEST_F(TapeTest, AnExceptionIsAFailureWithItsText) {
  builder_.call("kernel", address_of(throw_error), {}, false);
  auto tape = finish();
  EXPECT_NE(run(*tape, {}), 0);
  EXPECT_EQ(error(), "kernel(): it threw: a kernel threw");
}

TEST_F(TapeTest, AnErrorTextIsCutToTheRoomThereIs) {
  builder_.call("kernel", address_of(throw_error), {}, false);
  auto tape = finish();
  char room[9] = "########";
  EXPECT_NE(tape->run({nullptr, 0, room, 8}), 0);
  EXPECT_STREQ(room, "kernel(");
  EXPECT_NE(tape->run({nullptr, 0, nullptr, 0}), 0);
}

TEST_F(TapeTest, FewerBuffersThanItsCallsNameIsAFailure) {
  builder_.call("add", address_of(add), {Address{0, 0}, Address{2, 0}}, false);
  auto tape = finish();
  Numbers one = {1};
  EXPECT_NE(run(*tape, {one.data(), one.data()}), 0);
  EXPECT_EQ(error(), "tape: the step has 2 buffers, and its calls name 3");
}

TEST_F(TapeTest, AnEmptyTapeRunsAndDoesNothing) {
  auto tape = finish();
  EXPECT_EQ(run(*tape, {}), 0);
  EXPECT_EQ(tape->call_count(), 0u);
  EXPECT_EQ(tape->dump(), "");
}

// ---- tensors

TEST_F(TapeTest, AViewIsMadeAgainOnlyWhenItsBufferMoved) {
  const Register to = view_of_buffer(0), from = view_of_buffer(1);
  builder_.copy(to, from);
  auto tape = finish();
  Numbers a = {1}, b = {2}, c = {3};
  ASSERT_EQ(run(*tape, {a.data(), b.data()}), 0);
  ASSERT_EQ(run(*tape, {a.data(), b.data()}), 0);
  EXPECT_EQ(fake_.views_made, 2);
  ASSERT_EQ(run(*tape, {c.data(), b.data()}), 0);
  EXPECT_EQ(fake_.views_made, 3);
  EXPECT_EQ(a[0] + c[0], 4);
}

TEST_F(TapeTest, ABufferAtAddressZeroIsBoundLikeAnyOther) {
  view_of_buffer(0);
  auto tape = finish();
  ASSERT_EQ(run(*tape, {nullptr}), 0);
  EXPECT_EQ(fake_.views_made, 1);
}

TEST_F(TapeTest, ABoxedCallTakesEveryKindOfValue) {
  const Register a = view_of_buffer(0), out = view_of_buffer(1);
  const auto results = builder_.dispatch(
      "2", "tid?t?t[i[?t?[t",
      {tensor(a), integer(10), real(100), Value{}, some(tensor(a)), list({integer(5), integer(6)}),
       list({some(tensor(a)), Value{}}), some(list({tensor(a), tensor(a)}))},
      2);
  builder_.copy(out, results[1]);
  auto tape = finish();
  Numbers in = {1000}, sum = {0};
  ASSERT_EQ(run(*tape, {in.data(), sum.data()}), 0);
  EXPECT_EQ(sum[0], 5 * 1000 + 10 + 100 + 5 + 6 + 1);
  EXPECT_EQ(fake_.live(), 2u) << "more than the two views outlives the run";
}

TEST_F(TapeTest, ResultsFeedPlainCallsByHandleDataAndView) {
  const Register a = view_of_buffer(0), out = view_of_buffer(1);
  const Register sum = builder_.dispatch("1", "ti", {tensor(a), integer(1)}, 1)[0];
  builder_.call("add", address_of(add), {DataOf{sum}, Address{0, 0}}, false);
  const Register same = builder_.view_of(sum, 0, 0, Numbers{1}, Numbers{1});
  builder_.copy(out, same);
  auto tape = finish();
  for (std::int64_t k : {3, 4}) {
    Numbers in = {k}, got = {0};
    ASSERT_EQ(run(*tape, {in.data(), got.data()}), 0);
    EXPECT_EQ(got[0], 2 * k + 1);
  }
}

TEST_F(TapeTest, AReleasedResultEndsBeforeTheRun) {
  static std::size_t live_inside = 0;
  const Register a = view_of_buffer(0);
  const Register result = builder_.dispatch("1", "t", {tensor(a)}, 1)[0];
  builder_.release(result);
  builder_.call("count", address_of(+[] { live_inside = fake->live(); }), {}, false);
  auto tape = finish();
  Numbers in = {1};
  ASSERT_EQ(run(*tape, {in.data()}), 0);
  EXPECT_EQ(live_inside, 1u);
}

TEST_F(TapeTest, AResultWithOtherStridesStopsTheRun) {
  const Register a = view_of_buffer(0);
  const Register result = builder_.dispatch("1", "t", {tensor(a)}, 1)[0];
  builder_.expect(result, Numbers{3}, Numbers{1});
  auto tape = finish();
  Numbers in = {1};
  ASSERT_EQ(run(*tape, {in.data()}), 0);
  fake_.result_strides = {2};
  EXPECT_NE(run(*tape, {in.data()}), 0);
  EXPECT_THAT(error(), HasSubstr("dim 0 came with stride 2, and the code after it was compiled "
                                 "for 1"));
}

TEST_F(TapeTest, StridesOfOneElementAreNotCompared) {
  const Register a = view_of_buffer(0);
  builder_.expect(builder_.dispatch("1", "t", {tensor(a)}, 1)[0], Numbers{1}, Numbers{99});
  auto tape = finish();
  Numbers in = {1};
  EXPECT_EQ(run(*tape, {in.data()}), 0);
}

// A bit of everything that the library can fail; adds all up into buffer 1.
void build_everything(TapeBuilder& builder) {
  const Register a = builder.view({0, 0}, 0, Numbers{1}, Numbers{1});
  const Register out = builder.view({1, 0}, 0, Numbers{1}, Numbers{1});
  const auto first = builder.dispatch(
      "2", "t[t?t[?t",
      {tensor(a), list({tensor(a), tensor(a)}), some(tensor(a)), list({some(tensor(a)), Value{}})},
      2);
  builder.expect(first[1], Numbers{1}, Numbers{1});
  builder.call("add_in_place", address_of(add_in_place),
               {DataOf{first[0]}, DataOf{first[1]}, std::int64_t{1}}, true);
  const Register same = builder.view_of(first[0], 0, 0, Numbers{1}, Numbers{1});
  builder.release(first[1]);
  const auto second = builder.dispatch("1", "?[ti", {some(list({tensor(same)})), integer(2)}, 1);
  builder.copy(out, second[0]);
}

TEST_F(TapeTest, WhicheverCallFailsNothingLeaksAndTheTapeRunsAgain) {
  constexpr int kFarTooMany = 200;
  for (int n = 1; n < kFarTooMany; ++n) {
    fake_.fail_call = n;
    fake_.calls = 0;
    build_everything(builder_);
    auto tape = finish();
    Numbers in = {10}, out = {0};
    const std::int32_t code = run(*tape, {in.data(), out.data()});
    EXPECT_LE(fake_.live(), 2u) << "more than views is left when call " << n << " fails";
    if (code == 0) {
      EXPECT_GT(n, 25) << "the tape calls less than it was built of";
      return;
    }
    EXPECT_THAT(error(), HasSubstr(": the fake library says no")) << fake_.failed.back();
    EXPECT_EQ(run(*tape, {in.data(), out.data()}), 0) << "after call " << n << " had failed";
    EXPECT_EQ(out[0], 50 + 51 + 1 + 2);
    EXPECT_EQ(fake_.live(), 2u);
    tape.reset();
    EXPECT_EQ(fake_.live(), 0u);
  }
  FAIL() << "the tape never got through";
}

// ---- the builder

TEST_F(TapeTest, RegistersThatAreUnknownOrReleasedAreRefused) {
  const Register a = view_of_buffer(0);
  const Register result = builder_.dispatch("1", "t", {tensor(a)}, 1)[0];
  const Register part = builder_.view_of(result, 0, 0, Numbers{1}, Numbers{1});
  builder_.release(result);
  builder_.copy(a, part);
  builder_.dispatch("1", "[t", {list({tensor(result)})}, 1);
  builder_.call("unknown", address_of(answer_nine), {HandleOf{Register{99}}}, false);
  const std::string text = refusal();
  EXPECT_THAT(text, HasSubstr("'copy(r0, r2)' names r2 after the release of r1"));
  EXPECT_THAT(text, HasSubstr("'r3 = 1.[t([r1])' names r1 after the release of r1"));
  EXPECT_THAT(text, HasSubstr("'unknown(r99)' names r99, and there are 4 registers"));
}

TEST_F(TapeTest, ADispatchCannotNameItsOwnResult) {
  builder_.dispatch("1", "t", {tensor(Register{0})}, 1);
  EXPECT_THAT(refusal(), HasSubstr("names r0, and there are 0 registers"));
}

TEST_F(TapeTest, WhatTheLibraryLacksIsNamed) {
  TapeBuilder builder;
  const Register a = builder.view({0, 0}, 0, Numbers{1}, Numbers{1});
  builder.dispatch("1", "[t", {list({tensor(a)})}, 1);
  builder.expect(a, Numbers{1}, Numbers{1});
  const auto made = builder.finish();
  ASSERT_FALSE(made.ok());
  for (const char* name :
       {"create_view", "delete_tensor", "dispatch", "new_list", "new_handle", "strides"}) {
    EXPECT_THAT(made.error().message(), HasSubstr(name));
  }
}

TEST_F(TapeTest, ShapesOptionalsAndAccessesOutOfRangeAreRefused) {
  builder_.view({0, 0}, 0, Numbers{1, 2}, Numbers{1});
  builder_.view({0, 0}, 0, Numbers{-1}, Numbers{1});
  builder_.view({kMaxTapeAccesses, 0}, 0, Numbers{1}, Numbers{1});
  builder_.dispatch("1", "?i", {of_items(Value::Kind::kSome, {})}, 1);
  const std::string text = refusal();
  EXPECT_THAT(text, HasSubstr("has 2 sizes and 1 strides"));
  EXPECT_THAT(text, HasSubstr("no size below 0"));
  EXPECT_THAT(text, HasSubstr("names access 1048576"));
  EXPECT_THAT(text, HasSubstr("an optional of 0 values"));
}

TEST_F(TapeTest, ABuilderIsEmptyAfterFinish) {
  builder_.call("null", nullptr, {}, false);
  refusal();
  auto tape = finish();
  EXPECT_EQ(tape->call_count(), 0u);
}

TEST_F(TapeTest, TheDumpHasALineForEachThingAsked) {
  const Register a = view_of_buffer(3);
  const Register b = builder_.dispatch("op", "out", {tensor(a), some(integer(1)), real(2)}, 1)[0];
  builder_.call("kernel", address_of(answer_nine),
                {Address{3, 8}, DataOf{b}, std::int64_t{-1}, 0.5, Integers{{4, 5}}}, false);
  builder_.release(b);
  auto tape = finish();
  EXPECT_EQ(tape->dump(),
            "r0 = view of b3+0, dtype 0, sizes [1], strides [1]\n"
            "r1 = op.out(r0, some(1), 2.0)\n"
            "kernel(b3+8, data(r1), -1, 0.5, [4, 5])\n"
            "release r1\n");
  EXPECT_EQ(tape->call_count(), 2u);
}

}  // namespace
}  // namespace anabranch::tape
