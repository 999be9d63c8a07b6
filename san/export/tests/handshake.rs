//! How clients come, ask and choose: well-behaved ones, old ones, and those that are neither.

use loadline_base::nbd::{
    OPTION_MAGIC, OPTION_REPLY_MAGIC, get_u32, get_u64, handshake, info, option, reply,
};
use loadline_san_export::login::{Export, Refusal};
use loadline_san_export::nbd::handshake::{Choice, Handshake, HandshakeError, Next};
use proptest::prelude::*;

fn export() -> Export {
    Export { description: "three copies".into(), bytes: 1 << 30, most: 32 << 20, ..Export::default() }
}

/// Answers what the handshake asks, as a server with one export would.
fn serve(handshake: &mut Handshake) -> Result<Next, HandshakeError> {
    loop {
        match handshake.step()? {
            Next::List => handshake.list(&[("vol".into(), export())]),
            Next::Export(name) if name == "vol" => handshake.export(Ok(&export()))?,
            Next::Export(name) if name == "away" => {
                handshake.export(Err(Refusal::NotNow("its owner is starting".into())))?;
            }
            Next::Export(name) => handshake.export(Err(Refusal::Unknown(format!("no volume {name}"))))?,
            next => return Ok(next),
        }
    }
}

fn asked(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

fn go(name: &str, wants: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend((wants.len() as u16).to_be_bytes());
    wants.iter().for_each(|want| data.extend(want.to_be_bytes()));
    data
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend_from_slice(query.as_bytes());
    }
    data
}

/// The replies: option, kind, data.
fn replies(mut out: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut replies = Vec::new();
    while !out.is_empty() {
        assert_eq!(get_u64(out, 0), OPTION_REPLY_MAGIC);
        let length = get_u32(out, 16) as usize;
        replies.push((get_u32(out, 8), get_u32(out, 12), out[20..20 + length].to_vec()));
        out = &out[20 + length..];
    }
    replies
}

/// A handshake whose greeting has been read and answered.
fn greeted(flags: u16) -> Handshake {
    let mut handshake = Handshake::default();
    assert_eq!(handshake.out.len(), 18);
    handshake.out.clear();
    handshake.feed(&u32::from(flags).to_be_bytes());
    handshake
}

const BOTH: u16 = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;

#[test]
fn a_client_asks_what_there_is_and_goes() {
    let mut handshake = greeted(BOTH);
    handshake.feed(&asked(option::STRUCTURED_REPLY, b""));
    handshake.feed(&asked(option::LIST, b""));
    handshake.feed(&asked(option::SET_META_CONTEXT, &contexts("vol", &["qemu:x", "base:allocation"])));
    handshake.feed(&asked(option::INFO, &go("vol", &[info::NAME, info::DESCRIPTION])));
    handshake.feed(&asked(option::GO, &go("vol", &[])));
    handshake.feed(b"what comes next");
    let chosen = Choice { name: "vol".into(), structured: true, allocation: true };
    assert_eq!(serve(&mut handshake), Ok(Next::Chosen(chosen)));
    assert_eq!(handshake.rest(), b"what comes next");
    let replies = replies(&handshake.out);
    let kinds: Vec<(u32, u32)> = replies.iter().map(|(option, kind, _)| (*option, *kind)).collect();
    assert_eq!(
        kinds,
        [
            (option::STRUCTURED_REPLY, reply::ACK),
            (option::LIST, reply::SERVER),
            (option::LIST, reply::ACK),
            (option::SET_META_CONTEXT, reply::META_CONTEXT),
            (option::SET_META_CONTEXT, reply::ACK),
            (option::INFO, reply::INFO),
            (option::INFO, reply::INFO),
            (option::INFO, reply::INFO),
            (option::INFO, reply::INFO),
            (option::INFO, reply::ACK),
            (option::GO, reply::INFO),
            (option::GO, reply::INFO),
            (option::GO, reply::ACK),
        ]
    );
    assert_eq!(&replies[1].2[4..7], b"vol");
    assert_eq!(get_u64(&replies[5].2, 2), 1 << 30, "its size is stated");
}

#[test]
fn contexts_of_another_export_do_not_count_nor_without_structured_replies() {
    let mut handshake = greeted(BOTH);
    handshake.feed(&asked(option::SET_META_CONTEXT, &contexts("vol", &["base:allocation"])));
    handshake.feed(&asked(option::STRUCTURED_REPLY, b""));
    handshake.feed(&asked(option::SET_META_CONTEXT, &contexts("other", &["base:allocation"])));
    handshake.feed(&asked(option::GO, &go("vol", &[])));
    let chosen = Choice { name: "vol".into(), structured: true, allocation: false };
    assert_eq!(serve(&mut handshake), Ok(Next::Chosen(chosen)));
    assert_eq!(replies(&handshake.out)[0].1, reply::ERR_INVALID);
}

#[test]
fn the_old_way_of_choosing_has_its_old_answer() {
    for (flags, zeroes) in [(BOTH, 0), (handshake::FIXED_NEWSTYLE, 124)] {
        let mut handshake = greeted(flags);
        handshake.feed(&asked(option::EXPORT_NAME, b"vol"));
        let chosen = Choice { name: "vol".into(), structured: false, allocation: false };
        assert_eq!(serve(&mut handshake), Ok(Next::Chosen(chosen)));
        assert_eq!(get_u64(&handshake.out, 0), 1 << 30);
        assert_eq!(handshake.out.len(), 10 + zeroes);
        let mut handshake = greeted(flags);
        handshake.feed(&asked(option::EXPORT_NAME, b"none"));
        assert_eq!(serve(&mut handshake), Err(HandshakeError::Refused("no volume none".into())));
    }
}

#[test]
fn what_cannot_be_had_is_told_and_another_may_be_chosen() {
    let mut handshake = greeted(BOTH);
    handshake.feed(&asked(option::GO, &go("none", &[])));
    handshake.feed(&asked(option::GO, &go("away", &[])));
    handshake.feed(&asked(77, b"unknown"));
    handshake.feed(&asked(option::GO, b"\0\0\0\x09vol"));
    handshake.feed(&asked(option::LIST, b"data"));
    handshake.feed(&asked(option::STRUCTURED_REPLY, &[0; 100_000]));
    assert_eq!(serve(&mut handshake), Ok(Next::Bytes));
    let kinds: Vec<u32> = replies(&handshake.out).into_iter().map(|(_, kind, _)| kind).collect();
    use reply::*;
    assert_eq!(
        kinds,
        [ERR_UNKNOWN, ERR_SHUTDOWN, ERR_UNSUP, ERR_INVALID, ERR_INVALID, ERR_TOO_BIG],
        "each is answered, and the client still welcome"
    );
    handshake.feed(&asked(option::ABORT, b""));
    assert_eq!(serve(&mut handshake), Ok(Next::Gone));
}

#[test]
fn a_client_that_does_not_speak_the_protocol_is_disconnected() {
    for flags in [0, u32::from(handshake::NO_ZEROES), 0x8000_0003] {
        let mut handshake = Handshake::default();
        handshake.feed(&flags.to_be_bytes());
        assert_eq!(serve(&mut handshake), Err(HandshakeError::Flags(flags)));
    }
    let mut handshake = greeted(BOTH);
    handshake.feed(b"GET / HTTP/1.1\r\n\r\n");
    assert!(matches!(serve(&mut handshake), Err(HandshakeError::Magic(_))));
    let mut handshake = greeted(BOTH);
    handshake.feed(&asked(option::LIST, b"")[..12]);
    handshake.feed(&u32::MAX.to_be_bytes());
    assert_eq!(serve(&mut handshake), Err(HandshakeError::TooLong(u32::MAX)));
    let mut handshake = greeted(BOTH);
    (0..300).for_each(|_| handshake.feed(&asked(option::STRUCTURED_REPLY, b"")));
    assert_eq!(serve(&mut handshake), Err(HandshakeError::TooMany));
}

/// Options as clients send them, with anything in them.
fn any_option() -> impl Strategy<Value = Vec<u8>> {
    let data = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..64),
        ("[a-z]{0,5}|vol", proptest::collection::vec(0u16..6, 0..4))
            .prop_map(|(name, wants)| go(&name, &wants)),
        ("[a-z]{0,5}|vol", proptest::collection::vec("base:allocation|base:|[a-z:]{0,9}", 0..4)).prop_map(
            |(name, queries)| contexts(&name, &queries.iter().map(String::as_str).collect::<Vec<_>>())
        ),
    ];
    let whole = (0u32..12, data).prop_map(|(option, data)| asked(option, &data));
    prop_oneof![9 => whole, 1 => proptest::collection::vec(any::<u8>(), 0..40)]
}

proptest! {
    #[test]
    fn bytes_mean_the_same_however_they_come(options in proptest::collection::vec(any_option(), 0..12), cut in 1usize..50) {
        let bytes = [&3u32.to_be_bytes()[..], &options.concat()].concat();
        let mut at_once = Handshake::default();
        at_once.feed(&bytes);
        let expected = serve(&mut at_once);
        let mut in_parts = Handshake::default();
        let mut got = Ok(Next::Bytes);
        for part in bytes.chunks(cut) {
            in_parts.feed(part);
            got = serve(&mut in_parts);
            if got.is_err() {
                break;
            }
        }
        prop_assert_eq!(got, expected);
        prop_assert_eq!(in_parts.out, at_once.out);
    }
}

/// A client that requests TLS, and sends these bytes with its request.
fn starts_tls(before: &[Vec<u8>], behind: &[u8]) -> (Handshake, Result<Next, HandshakeError>) {
    let mut handshake = Handshake::default();
    handshake.offer_tls();
    handshake.out.clear();
    handshake.feed(&u32::from(BOTH).to_be_bytes());
    before.iter().for_each(|option| handshake.feed(option));
    handshake.feed(&[&asked(option::STARTTLS, b"")[..], behind].concat());
    let next = serve(&mut handshake);
    (handshake, next)
}

#[test]
fn tls_begins_where_it_is_offered_and_once() {
    let mut handshake = greeted(BOTH);
    handshake.feed(&asked(option::STARTTLS, b""));
    assert_eq!(serve(&mut handshake), Ok(Next::Bytes));
    assert_eq!(replies(&handshake.out)[0].1, reply::ERR_UNSUP, "it was not offered");
    let (mut handshake, next) = starts_tls(&[], b"");
    assert_eq!(next, Ok(Next::StartTls));
    assert_eq!(replies(&std::mem::take(&mut handshake.out))[0].1, reply::ACK);
    handshake.feed(&asked(option::STARTTLS, b""));
    assert_eq!(serve(&mut handshake), Ok(Next::Bytes));
    assert_eq!(replies(&std::mem::take(&mut handshake.out))[0].1, reply::ERR_INVALID, "it has begun");
    handshake.feed(&asked(option::GO, &go("vol", &[])));
    assert!(matches!(serve(&mut handshake), Ok(Next::Chosen(_))), "options go on without a greeting");
}

/// An attacker on the way may have added it, and nothing would show that TLS has not protected it.
#[test]
fn what_was_sent_before_tls_does_not_count_after_it() {
    let (_, next) = starts_tls(&[], &asked(option::LIST, b""));
    assert!(matches!(next, Err(HandshakeError::BeforeTls(16))), "{next:?}");
    let before = [
        asked(option::STRUCTURED_REPLY, b""),
        asked(option::SET_META_CONTEXT, &contexts("vol", &["base:allocation"])),
    ];
    let (mut handshake, next) = starts_tls(&before, b"");
    assert_eq!(next, Ok(Next::StartTls));
    handshake.feed(&asked(option::GO, &go("vol", &[])));
    let Ok(Next::Chosen(choice)) = serve(&mut handshake) else { panic!("it chooses") };
    assert!(!choice.structured && !choice.allocation, "what was agreed on in the open is forgotten");
}

#[test]
fn an_export_that_needs_tls_is_refused_by_its_own_answer() {
    let mut handshake = greeted(BOTH);
    handshake.feed(&asked(option::GO, &go("vol", &[])));
    assert_eq!(handshake.step(), Ok(Next::Export("vol".into())));
    handshake.export(Err(Refusal::NeedsTls("only by TLS".into()))).unwrap();
    assert_eq!(replies(&handshake.out)[0], (option::GO, reply::ERR_TLS_REQD, b"only by TLS".to_vec()));
    let mut old = greeted(BOTH);
    old.feed(&asked(option::EXPORT_NAME, b"vol"));
    assert_eq!(old.step(), Ok(Next::Export("vol".into())));
    assert!(old.export(Err(Refusal::NeedsTls("only by TLS".into()))).is_err());
}
