//! Logins of real initiators, by what they send: open-iscsi, libiscsi (QEMU), Windows and ESXi; and logins that are refused.

mod initiator;

use initiator::{Received, decode, encode};
use loadline_base::chap;
use loadline_base::iscsi::{Header, IMMEDIATE, NO_TAG, field, flag, keys, login_status, opcode, stage};
use loadline_san_export::iscsi::login::TargetLogin;
use loadline_san_export::iscsi::name::name_of;
use loadline_san_export::iscsi::negotiated::Negotiated;
use loadline_san_export::iscsi::parameters::Parameters;
use loadline_san_export::login::{Chosen, Credential, Export, Initiator, Login as _, LoginStep, Refusal};

const NAME: &str = "iqn.1993-08.org.debian:01:abc";
const TO_OPERATIONAL: u8 = flag::TRANSIT | stage::SECURITY << 2 | stage::OPERATIONAL;
const TO_END: u8 = flag::TRANSIT | stage::OPERATIONAL << 2 | stage::FULL_FEATURE;

fn volume() -> Export {
    Export {
        bytes: 1 << 30,
        most: 4 << 20,
        portals: vec![("192.0.2.1:3260".parse().unwrap(), 5), ("[2001:db8::1]:3260".parse().unwrap(), 6)],
        group: 5,
        ..Export::default()
    }
}

/// The volume, with an initiator that proves its name, and the volume its own.
fn guarded() -> Export {
    let credential = |user: &str, secret: &str| Some(Credential { user: user.into(), secret: secret.into() });
    let chap = credential("host", "secret of the host");
    let mutual = credential("array", "secret of the array");
    Export { initiators: vec![Initiator { name: NAME.to_uppercase(), chap, mutual, naming: 0 }], ..volume() }
}

/// A login, and what answers its questions.
struct Client {
    login: TargetLogin,
    export: Result<Export, Refusal>,
    bytes: Vec<u8>,
}

/// Where a login has come to.
#[derive(Debug)]
enum End {
    Waits,
    Chosen(Chosen),
    Gone,
    Refused(String),
}

impl Client {
    fn new(is_local: bool, export: Result<Export, Refusal>) -> Client {
        Client { login: TargetLogin::new(is_local), export, bytes: Vec::new() }
    }

    /// Sends these bytes. What comes back.
    fn feed(&mut self, bytes: &[u8]) -> (Vec<Received>, End) {
        self.login.feed(bytes);
        let end = loop {
            let step = self.login.step();
            self.bytes.extend(self.login.take_output());
            match step {
                Ok(LoginStep::Bytes) => break End::Waits,
                Ok(LoginStep::List) => {
                    let export = self.export.clone().expect("there is a volume");
                    self.login.list(&[("vol".into(), export.clone()), ("Other_1".into(), export)]);
                }
                Ok(LoginStep::Export(name)) => {
                    assert_eq!(name, "vol");
                    let found = match &self.export {
                        Ok(export) => Ok(export),
                        Err(refusal) => Err(refusal.clone()),
                    };
                    self.login.export(found).expect("it is answered");
                }
                Ok(LoginStep::Chosen(chosen)) => break End::Chosen(chosen),
                Ok(LoginStep::Gone) => break End::Gone,
                Ok(LoginStep::StartTls) => panic!("iSCSI has no TLS"),
                Err(why) => break End::Refused(why.0),
            }
        };
        (decode(&Parameters::default(), &mut self.bytes), end)
    }

    /// Sends a login request with these keys. The header of the response, its keys, and where that leads.
    fn ask(&mut self, flags: u8, keys: &[&str]) -> (Header, Vec<(String, String)>, End) {
        let (received, end) = self.feed(&request(flags, &text(keys)));
        assert_eq!(received.len(), 1, "{received:?}");
        let Received { header, data } = &received[0];
        assert_eq!((header.opcode(), header.u32(field::TASK_TAG)), (opcode::LOGIN_RESPONSE, 0x17));
        (*header, pairs(data), end)
    }
}

fn request(flags: u8, text: &[u8]) -> Vec<u8> {
    encode(&Parameters::default(), header(flags), text)
}

fn header(flags: u8) -> Header {
    let mut header = Header::new(opcode::LOGIN | IMMEDIATE, flags);
    header.0[8..14].copy_from_slice(&[0, 2, 0x3d, 1, 0, 0]);
    header.set_u32(field::TASK_TAG, 0x17);
    header.set_u32(field::COMMAND_NUMBER, 0x1000);
    header
}

fn text(keys: &[&str]) -> Vec<u8> {
    keys.iter().flat_map(|key| [key.as_bytes(), b"\0"].concat()).collect()
}

fn pairs(text: &[u8]) -> Vec<(String, String)> {
    let keys = keys(text).expect("an answer has keys");
    keys.into_iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn value<'k>(keys: &'k [(String, String)], wanted: &str) -> &'k str {
    keys.iter().find(|(key, _)| key == wanted).map_or("", |(_, value)| value)
}

fn target() -> String {
    format!("TargetName={}", name_of("vol"))
}

fn initiator_name() -> String {
    format!("InitiatorName={NAME}")
}

fn chosen(end: End) -> Negotiated {
    match end {
        End::Chosen(chosen) => Negotiated::decode(&chosen.negotiated).expect("it is encoded"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn open_iscsi_logs_in() {
    let mut client = Client::new(true, Ok(volume()));
    let (response, keys, _) = client.ask(
        TO_OPERATIONAL,
        &[&initiator_name(), "InitiatorAlias=host", &target(), "SessionType=Normal", "AuthMethod=None"],
    );
    assert_eq!((response.flags(), response.0[36]), (TO_OPERATIONAL, 0));
    assert_eq!((value(&keys, "AuthMethod"), value(&keys, "TargetPortalGroupTag")), ("None", "5"));
    let (response, keys, end) = client.ask(
        TO_END,
        &[
            "HeaderDigest=None",
            "DataDigest=None",
            "DefaultTime2Wait=2",
            "DefaultTime2Retain=0",
            "IFMarker=No",
            "OFMarker=No",
            "ErrorRecoveryLevel=0",
            "InitialR2T=No",
            "ImmediateData=Yes",
            "MaxBurstLength=16776192",
            "FirstBurstLength=262144",
            "MaxOutstandingR2T=1",
            "MaxConnections=1",
            "DataPDUInOrder=Yes",
            "DataSequenceInOrder=Yes",
            "MaxRecvDataSegmentLength=262144",
        ],
    );
    assert_eq!(response.flags(), TO_END);
    assert_ne!(response.0[14..16], [0, 0], "the session has a number");
    // It understands each key that it gets, and no other.
    let answered: Vec<_> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let expected = [
        "HeaderDigest=None",
        "DataDigest=None",
        "DefaultTime2Wait=2",
        "DefaultTime2Retain=0",
        "IFMarker=No",
        "OFMarker=No",
        "ErrorRecoveryLevel=0",
        "InitialR2T=No",
        "ImmediateData=Yes",
        "MaxBurstLength=1048576",
        "FirstBurstLength=262144",
        "MaxOutstandingR2T=1",
        "MaxConnections=1",
        "DataPDUInOrder=Yes",
        "DataSequenceInOrder=Yes",
        "MaxRecvDataSegmentLength=262144",
    ];
    assert_eq!(answered, expected);
    let negotiated = chosen(end);
    assert_eq!((negotiated.initiator.as_str(), negotiated.isid), (NAME, [0, 2, 0x3d, 1, 0, 0]));
    assert_eq!((negotiated.command_number, negotiated.status_number), (0x1000, 3));
    let agreed = negotiated.parameters;
    assert_eq!((agreed.sends, agreed.receives, agreed.first_burst), (262144, 262144, 262144));
    assert!(agreed.immediate_data && !agreed.initial_r2t);
    // The window is open from the first command on.
    assert_eq!([28, 32].map(|at| response.u32(at)), [0x1000, 0x1000 + 127]);
}

#[test]
fn libiscsi_logs_in_without_a_security_stage() {
    let mut client = Client::new(true, Ok(volume()));
    let (response, keys, end) = client.ask(
        TO_END,
        &[
            &initiator_name(),
            &target(),
            "SessionType=Normal",
            "HeaderDigest=None,CRC32C",
            "DataDigest=None",
            "InitialR2T=No",
            "ImmediateData=Yes",
            "MaxBurstLength=262144",
            "FirstBurstLength=262144",
            "DefaultTime2Wait=2",
            "DefaultTime2Retain=0",
            "MaxOutstandingR2T=1",
            "ErrorRecoveryLevel=0",
            "IFMarker=No",
            "OFMarker=No",
            "MaxConnections=1",
            "MaxRecvDataSegmentLength=262144",
            "DataPDUInOrder=Yes",
            "DataSequenceInOrder=Yes",
            "RDMAExtensions=Yes",
        ],
    );
    assert_eq!((response.flags(), response.0[36]), (TO_END, 0));
    assert_eq!((value(&keys, "HeaderDigest"), value(&keys, "RDMAExtensions")), ("None", "NotUnderstood"));
    assert_eq!(value(&keys, "TargetPortalGroupTag"), "5");
    assert_eq!(chosen(end).parameters.burst, 262144);
}

#[test]
fn libiscsi_proves_its_name_in_three_steps() {
    let mut client = Client::new(false, Ok(guarded()));
    let (response, keys, _) = client
        .ask(TO_OPERATIONAL, &[&initiator_name(), &target(), "SessionType=Normal", "AuthMethod=CHAP,None"]);
    assert_eq!((response.flags(), value(&keys, "AuthMethod")), (0, "CHAP"), "the stage is not over");
    let (_, keys, _) = client.ask(stage::OPERATIONAL, &["CHAP_A=5"]);
    assert_eq!(value(&keys, "CHAP_A"), "5");
    let id: u8 = value(&keys, "CHAP_I").parse().unwrap();
    let challenge = chap::decode_binary(value(&keys, "CHAP_C"), 64).unwrap();
    let proof = chap::encode_binary(&chap::response(id, b"secret of the host", &challenge)).to_uppercase();
    let proof = format!("CHAP_R=0x{}", &proof[2..]);
    let (response, keys, _) =
        client.ask(TO_OPERATIONAL, &["CHAP_N=host", &proof, "CHAP_I=33", "CHAP_C=0x0102030405060708"]);
    assert_eq!((response.flags(), response.0[36]), (TO_OPERATIONAL, 0));
    let expected = chap::response(33, b"secret of the array", &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(value(&keys, "CHAP_N"), "array");
    assert_eq!(value(&keys, "CHAP_R"), chap::encode_binary(&expected));
    // It names itself and the target again.
    let names = [&initiator_name(), &target(), "SessionType=Normal", "MaxRecvDataSegmentLength=262144"];
    let (response, keys, end) = client.ask(TO_END, &names);
    assert_eq!(response.flags(), TO_END);
    assert_eq!(keys, [("MaxRecvDataSegmentLength".to_string(), "262144".to_string())]);
    chosen(end);
}

#[test]
fn windows_logs_in() {
    let export = Export {
        initiators: vec![Initiator {
            name: "iqn.1991-05.com.microsoft:host".into(),
            chap: None,
            mutual: None,
            naming: 0,
        }],
        ..volume()
    };
    let mut client = Client::new(false, Ok(export));
    let name = "InitiatorName=iqn.1991-05.com.microsoft:host";
    let first = [name, "SessionType=Normal", &target(), "AuthMethod=None"];
    let (response, ..) = client.ask(TO_OPERATIONAL, &first);
    assert_eq!((response.flags(), response.0[36]), (TO_OPERATIONAL, 0));
    let (response, keys, end) = client.ask(
        TO_END,
        &[
            "HeaderDigest=None,CRC32C",
            "DataDigest=None,CRC32C",
            "ErrorRecoveryLevel=2",
            "InitialR2T=No",
            "ImmediateData=Yes",
            "MaxRecvDataSegmentLength=65536",
            "MaxBurstLength=262144",
            "FirstBurstLength=65536",
            "MaxConnections=1",
            "DataPDUInOrder=Yes",
            "DataSequenceInOrder=Yes",
            "DefaultTime2Wait=0",
            "DefaultTime2Retain=60",
            "MaxOutstandingR2T=16",
        ],
    );
    assert_eq!((response.flags(), value(&keys, "ErrorRecoveryLevel")), (TO_END, "0"));
    assert_eq!((value(&keys, "DefaultTime2Retain"), value(&keys, "MaxOutstandingR2T")), ("0", "16"));
    let agreed = chosen(end).parameters;
    assert_eq!((agreed.sends, agreed.first_burst, agreed.outstanding), (65536, 65536, 16));
}

#[test]
fn esxi_logs_in_with_digests() {
    let mut client = Client::new(true, Ok(volume()));
    let name = "InitiatorName=iqn.1998-01.com.vmware:esx-58f64804";
    let first = [name, "InitiatorAlias=esx", &target(), "SessionType=Normal", "AuthMethod=None"];
    client.ask(TO_OPERATIONAL, &first);
    let (_, keys, end) = client.ask(
        TO_END,
        &[
            "HeaderDigest=CRC32C,None",
            "DataDigest=CRC32C",
            "DefaultTime2Wait=0",
            "DefaultTime2Retain=0",
            "IFMarker=No",
            "OFMarker=No",
            "ErrorRecoveryLevel=0",
            "InitialR2T=No",
            "ImmediateData=Yes",
            "MaxBurstLength=262144",
            "FirstBurstLength=262144",
            "MaxOutstandingR2T=1",
            "MaxConnections=1",
            "DataPDUInOrder=Yes",
            "DataSequenceInOrder=Yes",
            "MaxRecvDataSegmentLength=131072",
        ],
    );
    assert_eq!((value(&keys, "HeaderDigest"), value(&keys, "DataDigest")), ("CRC32C", "CRC32C"));
    let agreed = chosen(end).parameters;
    assert!(agreed.header_digest && agreed.data_digest);
    assert_eq!(agreed.sends, 131072);
}

#[test]
fn an_initiator_discovers_the_targets_and_leaves() {
    let mut client = Client::new(true, Ok(volume()));
    let to_end = flag::TRANSIT | stage::FULL_FEATURE;
    let (response, keys, end) =
        client.ask(to_end, &[&initiator_name(), "SessionType=Discovery", "AuthMethod=None"]);
    assert_eq!((response.flags(), value(&keys, "AuthMethod")), (to_end, "None"));
    assert!(matches!(end, End::Waits));
    let mut ask = Header::new(opcode::TEXT, flag::FINAL);
    ask.set_u32(field::TASK_TAG, 2);
    ask.set_u32(field::TRANSFER_TAG, NO_TAG);
    ask.set_u32(field::COMMAND_NUMBER, 0x1000);
    let (received, _) = client.feed(&encode(&Parameters::default(), ask, b"SendTargets=All\0"));
    assert_eq!((received[0].opcode(), received[0].header.flags()), (opcode::TEXT_RESPONSE, flag::FINAL));
    let expected = text(&[
        "TargetName=iqn.2026-01.org.loadline:vol",
        "TargetAddress=192.0.2.1:3260,5",
        "TargetAddress=[2001:db8::1]:3260,6",
        "TargetName=iqn.2026-01.org.loadline::4fther:5f1",
        "TargetAddress=192.0.2.1:3260,5",
        "TargetAddress=[2001:db8::1]:3260,6",
    ]);
    assert_eq!(String::from_utf8_lossy(&received[0].data), String::from_utf8_lossy(&expected));
    ask.set_u32(field::COMMAND_NUMBER, 0x1001);
    let one = format!("SendTargets={}\0", name_of("Other_1"));
    let (received, _) = client.feed(&encode(&Parameters::default(), ask, one.as_bytes()));
    assert_eq!(pairs(&received[0].data)[0].1, name_of("Other_1"));
    let mut ping = Header::new(opcode::NOP_OUT | IMMEDIATE, flag::FINAL);
    ping.set_u32(field::TASK_TAG, 9);
    ping.set_u32(field::COMMAND_NUMBER, 0x1002);
    let (received, _) = client.feed(&encode(&Parameters::default(), ping, b"are you there"));
    assert_eq!((received[0].opcode(), &received[0].data[..]), (opcode::NOP_IN, &b"are you there"[..]));
    let mut command = Header::new(opcode::SCSI_COMMAND, flag::FINAL);
    command.set_u32(field::COMMAND_NUMBER, 0x1002);
    let (received, _) = client.feed(&encode(&Parameters::default(), command, b""));
    assert_eq!((received[0].opcode(), received[0].header.u32(16)), (opcode::REJECT, NO_TAG));
    let mut leave = Header::new(opcode::LOGOUT, flag::FINAL);
    leave.set_u32(field::COMMAND_NUMBER, 0x1003);
    let (received, end) = client.feed(&encode(&Parameters::default(), leave, b""));
    assert_eq!((received[0].opcode(), received[0].header.0[2]), (opcode::LOGOUT_RESPONSE, 0));
    assert!(matches!(end, End::Gone));
}

#[test]
fn a_list_of_many_targets_comes_in_parts() {
    let mut login = TargetLogin::new(true);
    let first = [&initiator_name()[..], "SessionType=Discovery", "MaxRecvDataSegmentLength=1024"];
    login.feed(&request(TO_END, &text(&first)));
    let exports: Vec<_> = (0..256).map(|number| (format!("volume-{number}"), volume())).collect();
    assert_eq!(login.step(), Ok(LoginStep::List));
    login.list(&exports);
    assert_eq!(login.step(), Ok(LoginStep::Bytes));
    login.take_output();
    let (mut tag, mut number, mut all) = (NO_TAG, 0x1000, Vec::new());
    loop {
        let mut ask = Header::new(opcode::TEXT, flag::FINAL);
        ask.set_u32(field::TRANSFER_TAG, tag);
        ask.set_u32(field::COMMAND_NUMBER, number);
        let targets: &[u8] = if tag == NO_TAG { b"SendTargets=All\0" } else { b"" };
        login.feed(&encode(&Parameters::default(), ask, targets));
        if login.step() == Ok(LoginStep::List) {
            login.list(&exports);
        }
        let received = decode(&Parameters::default(), &mut login.take_output()).remove(0);
        assert!(received.data.len() <= 1024);
        all.extend(received.data);
        (tag, number) = (received.header.u32(field::TRANSFER_TAG), number + 1);
        if received.header.has(flag::FINAL) {
            break;
        }
    }
    let names = pairs(&all).into_iter().filter(|(key, _)| key == "TargetName").map(|(_, name)| name);
    assert_eq!(names.collect::<Vec<_>>(), exports.iter().map(|(name, _)| name_of(name)).collect::<Vec<_>>());
}

#[test]
fn an_initiator_is_shown_only_what_it_may_use() {
    for (is_local, export, expected) in [(true, volume(), 2), (false, volume(), 0), (false, guarded(), 2)] {
        let mut client = Client::new(is_local, Ok(export));
        client.ask(TO_END, &[&initiator_name(), "SessionType=Discovery"]);
        let mut ask = Header::new(opcode::TEXT, flag::FINAL);
        ask.set_u32(field::TRANSFER_TAG, NO_TAG);
        ask.set_u32(field::COMMAND_NUMBER, 0x1000);
        let (received, _) = client.feed(&encode(&Parameters::default(), ask, b"SendTargets=All\0"));
        let shown = pairs(&received[0].data).iter().filter(|(key, _)| key == "TargetName").count();
        assert_eq!(shown, expected);
    }
}

#[test]
fn a_login_may_come_byte_by_byte_and_in_parts() {
    let mut client = Client::new(true, Ok(volume()));
    let whole = text(&[&initiator_name(), &target(), "SessionType=Normal", "InitialR2T=No"]);
    let (first, second) = whole.split_at(20);
    let mut stream = request(flag::CONTINUE | stage::OPERATIONAL << 2, first);
    stream.extend(request(TO_END, second));
    stream.extend(b"what follows");
    let (mut received, mut ended) = (Vec::new(), None);
    for byte in stream {
        let (some, end) = client.feed(&[byte]);
        received.extend(some);
        if let End::Chosen(chosen) = end {
            ended.get_or_insert(chosen);
        }
    }
    assert_eq!(received.len(), 2);
    assert_eq!((received[0].header.flags(), received[0].data.len()), (0, 0), "it waits for the rest");
    assert_eq!(value(&pairs(&received[1].data), "InitialR2T"), "No");
    assert!(ended.is_some());
    // What comes at once with the last request is for the session.
    let mut client = Client::new(true, Ok(volume()));
    let mut stream = request(TO_END, &whole);
    stream.extend(b"what follows");
    let (_, end) = client.feed(&stream);
    assert!(matches!(end, End::Chosen(chosen) if chosen.rest == b"what follows"));
}

#[test]
fn the_log_has_the_initiator_the_volume_and_the_remedy_of_a_proof_that_fails() {
    let name = initiator_name();
    let normal = [&name[..], &target(), "SessionType=Normal"];
    let discovery = [&name[..], "SessionType=Discovery"];
    let without_secret = Export { initiators: Vec::new(), ..guarded() };
    let begun = |export: &Export, first: &[&str], more: &str| {
        let mut client = Client::new(true, Ok(export.clone()));
        let (_, _, end) = client.ask(0, &[first, &[more]].concat());
        (client, end)
    };
    let said = |end: End| match end {
        End::Refused(why) => why,
        other => panic!("{other:?}"),
    };
    let (mut client, _) = begun(&guarded(), &normal, "AuthMethod=CHAP");
    client.ask(0, &["CHAP_A=5"]);
    let (_, _, end) = client.ask(0, &["CHAP_N=someone", "CHAP_R=0x00000000000000000000000000000000"]);
    let wrong = said(end);
    let of = format!("initiator {NAME} of volume vol: ");
    for words in [
        &of,
        "its user or its secret is wrong",
        "'loadline volume access vol' shows the user",
        "--secret-file",
    ] {
        assert!(wrong.contains(words), "{words}: {wrong}");
    }
    for (export, first, method, words) in [
        (&guarded(), &normal[..], "AuthMethod=None", "does not offer that. 'loadline volume access vol'"),
        (&without_secret, &normal[..], "AuthMethod=CHAP", "has no secret here. 'loadline volume access vol'"),
        (&without_secret, &discovery[..], "AuthMethod=CHAP", "leave CHAP out there"),
    ] {
        let why = said(begun(export, first, method).1);
        assert!(why.contains(words) && why.contains(NAME), "{words}: {why}");
    }
}

/// How a login ends that has this first request.
fn refusal(is_local: bool, export: Result<Export, Refusal>, header: Header, keys: &[&str]) -> (u8, u8) {
    let mut client = Client::new(is_local, export);
    let (received, end) = client.feed(&encode(&Parameters::default(), header, &text(keys)));
    let header = received[0].header;
    assert!(matches!(&end, End::Refused(why) if why.contains("refused")), "{end:?}");
    assert_eq!(header.flags() & flag::TRANSIT, 0);
    (header.0[36], header.0[37])
}

#[test]
fn what_cannot_log_in_is_told_why() {
    let (name, target) = (initiator_name(), target());
    let good = [&name[..], &target, "SessionType=Normal", "AuthMethod=None"];
    let to = header(TO_OPERATIONAL);
    let refused = |keys: &[&str]| refusal(true, Ok(volume()), to, keys);
    assert_eq!(refused(&good[1..]), login_status::MISSING_PARAMETER);
    assert_eq!(refused(&[&name, "SessionType=Normal"]), login_status::MISSING_PARAMETER);
    assert_eq!(refused(&["InitiatorName=", &target]), login_status::MISSING_PARAMETER);
    assert_eq!(refused(&[&name, &target, "SessionType=Other"]), login_status::SESSION_TYPE);
    assert_eq!(refused(&[&name, "TargetName=iqn.2000-01.org.example:x"]), login_status::NOT_FOUND);
    assert_eq!(refused(&[&name, &target, "AuthMethod=CHAP"]), login_status::AUTHENTICATION_FAILED);
    assert_eq!(refused(&["no key"]), login_status::INITIATOR_ERROR);
    let answered = |refusal: Refusal| self::refusal(true, Err(refusal), to, &good);
    assert_eq!(answered(Refusal::Unknown("no".into())), login_status::NOT_FOUND);
    assert_eq!(answered(Refusal::NotNow("no".into())), login_status::UNAVAILABLE);
    assert_eq!(answered(Refusal::NeedsTls("no".into())), login_status::FORBIDDEN);
    // From another machine, and not named.
    assert_eq!(refusal(false, Ok(volume()), to, &good), login_status::FORBIDDEN);
    // It must prove its name.
    assert_eq!(refusal(true, Ok(guarded()), to, &good), login_status::AUTHENTICATION_FAILED);
    assert_eq!(refusal(true, Ok(guarded()), header(TO_END), &good[..3]), login_status::AUTHENTICATION_FAILED);
    assert_eq!(refusal(true, Ok(guarded()), to, &good[..3]), login_status::AUTHENTICATION_FAILED);
    let changed = |change: &dyn Fn(&mut Header)| {
        let mut header = to;
        change(&mut header);
        refusal(true, Ok(volume()), header, &good)
    };
    assert_eq!(changed(&|header| header.0[3] = 1), login_status::UNSUPPORTED_VERSION);
    assert_eq!(changed(&|header| header.0[15] = 1), login_status::NO_SESSION);
    for flags in [0x0c, 0x08, flag::TRANSIT, flag::TRANSIT | 2, flag::TRANSIT | flag::CONTINUE | 1] {
        assert_eq!(changed(&|header| header.0[1] = flags), login_status::INITIATOR_ERROR, "{flags:#x}");
    }
}

#[test]
fn a_login_that_changes_its_mind_or_never_ends_is_disconnected() {
    let first = [&initiator_name()[..], &target()];
    let refused = |second: Header| {
        let mut client = Client::new(true, Ok(volume()));
        client.ask(0, &first);
        let (received, end) = client.feed(&encode(&Parameters::default(), second, b""));
        assert!(matches!(end, End::Refused(_)));
        (received[0].header.0[36], received[0].header.0[37])
    };
    let mut other = header(0);
    other.0[13] = 9;
    assert_eq!(refused(other), login_status::INVALID);
    assert_eq!(refused(header(TO_END)), login_status::INITIATOR_ERROR, "it was in the security stage");
    // Over and over.
    let mut client = Client::new(true, Ok(volume()));
    let ends = (0..100).map(|_| client.feed(&request(0, &text(&first))).1);
    assert!(ends.take_while(|end| matches!(end, End::Waits)).count() < 70);
    // A text without an end, and one whose answer would be too long.
    let mut client = Client::new(true, Ok(volume()));
    let ends = (0..100).map(|_| client.feed(&request(flag::CONTINUE, &[b'x'; 4096])).1);
    assert!(ends.take_while(|end| matches!(end, End::Waits)).count() < 6);
    let mut client = Client::new(true, Ok(volume()));
    let many = [&text(&first)[..], &b"a=\0".repeat(2500)].concat();
    assert!(matches!(client.feed(&request(0, &many)).1, End::Refused(_)));
    // Another protocol, and a PDU that is too long.
    let mut client = Client::new(true, Ok(volume()));
    assert!(matches!(client.feed(&[b'G'; 48]).1, End::Refused(_)));
    let mut client = Client::new(true, Ok(volume()));
    let mut long = header(0);
    long.set_data_bytes(9000);
    assert!(matches!(client.feed(&long.0).1, End::Refused(_)));
}
