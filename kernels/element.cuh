// SPDX-License-Identifier: Apache-2.0
// The cast of one element.
namespace gpucast {

// The generic path for any pair. The file of each destination's family has overloads with fast paths for some sources;
// in what they return the bits above the destination's are arbitrary.
template <typename Src, typename Dst, typename Word, typename Rule, typename SrcFamily, typename DstFamily>
GPUCAST_INLINE Word convert(Word code, Rule rule, SrcFamily source, DstFamily destination) {
    return encode<Dst>(decode<Src>(code, source), rule, destination);
}

template <typename Src, typename Dst>
constexpr bool is_same = false;
template <typename DType>
constexpr bool is_same<DType, DType> = true;

template <typename Src, typename Dst>
struct Cast {
    // The bits of the result above the destination's are arbitrary.
    template <typename Word, typename Rule>
    static GPUCAST_INLINE Word low_bits(Word code, Rule rule) {
        return convert<Src, Dst>(code, rule, typename Src::family(), typename Dst::family());
    }
};
template <typename DType>
struct Cast<DType, DType> {
    // Same type: the code itself. But any code of BOOL that is not zero becomes 1, the only code of true.
    template <typename Word, typename Rule>
    static GPUCAST_INLINE Word low_bits(Word code, Rule rule) {
        if constexpr (DType::is_bool) {
            return convert<DType, DType>(code, rule, BoolFamily(), BoolFamily());
        } else {
            return code;
        }
    }
};

template <typename Src, typename Dst, typename Word, typename Rule>
GPUCAST_INLINE Word cast_code(Word code, Rule rule) {
    return Cast<Src, Dst>::low_bits(code, rule) & Word(Dst::mask);
}

}  // namespace gpucast
