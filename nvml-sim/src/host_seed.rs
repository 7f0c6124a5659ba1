//! Numbers that look random and are the same for the same name: UUIDs and serials of simulated GPUs.

/// The UUID of the GPU in a slot of a host.
pub fn uuid(host_seed: &str, slot: usize) -> String {
    let high = mix(host_seed, slot as u64, 1);
    let low = mix(host_seed, slot as u64, 2);
    format!(
        "GPU-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xFFFF,
        high & 0xFFFF,
        low >> 48,
        low & 0xFFFF_FFFF_FFFF
    )
}

/// 64 well-spread bits for a host, a slot and a purpose: FNV-1a over the name, then the splitmix64 finisher.
pub fn mix(host_seed: &str, slot: u64, purpose: u64) -> u64 {
    let fnv = host_seed
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
    let mut bits = fnv.wrapping_add(0x9E37_79B9_7F4A_7C15u64.wrapping_mul(1 + slot * 4 + purpose));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}
